// SPDX-License-Identifier: Apache-2.0
/// See NOTE [The end of backward]: Python's backward runs inside of the library's.
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include "engine/touch/backward.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

/// The edges from which autograd starts. A GradientEdge in place of a tensor is left out: what
/// hangs on it is not looked at for weights that are in no shard.
torch::autograd::edge_list roots_of(const py::args& arguments) {
  torch::autograd::edge_list roots;
  if (arguments.empty()) {
    return roots;
  }
  for (const py::handle tensor : arguments[0]) {
    if (THPVariable_Check(tensor.ptr())) {
      roots.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(tensor.ptr())));
    }
  }
  return roots;
}

py::object run_backward(const py::object& inner, const py::args& arguments,
                        const py::kwargs& keywords) {
  py::object result;
  const torch::autograd::edge_list roots = roots_of(arguments);
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
