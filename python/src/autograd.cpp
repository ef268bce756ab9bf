// SPDX-License-Identifier: Apache-2.0
/// See NOTE [The end of backward]: Python's backward runs inside of the library's.
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include "engine/touch/backward.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

py::object run_backward(const py::object& inner, const py::args& arguments,
                        const py::kwargs& keywords) {
  py::object result;
  {
    const py::gil_scoped_release unlocked;
    engine::run_as_backward([&] {
      const py::gil_scoped_acquire locked;
      result = inner(*arguments, **keywords);
    });
  }
  return result;
}

}  // namespace

void bind_autograd(py::module_& module) {
  module.def("run_backward", &run_backward,
             "Calls `inner`, autograd's run_backward, so that its end is seen.");
}

}  // namespace fsdp::python
