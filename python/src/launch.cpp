// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "apps/fsdp/program.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

void bind_launch(py::module_& module) {
  module.def(
      "program",
      [](std::vector<std::string> arguments) {
        std::vector<char*> words;
        for (std::string& argument : arguments) {
          words.push_back(argument.data());
        }
        words.push_back(nullptr);
        return apps::program(static_cast<int>(arguments.size()), words.data());
      },
      py::arg("arguments"), Unlocked(), "The program `fsdp`; returns its exit code.");
}

}  // namespace fsdp::python
