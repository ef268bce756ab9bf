// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <torch/version.h>

#include "python/src/bind.hpp"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ library behind the package fsdp.";
  module.attr("__version__") = FSDP_VERSION;
  module.attr("torch_version") = TORCH_VERSION;
  fsdp::python::bind_host(module);
  fsdp::python::bind_world(module);
  fsdp::python::bind_sharded(module);
  fsdp::python::bind_autograd(module);
  fsdp::python::bind_optimizers(module);
  fsdp::python::bind_checkpoints(module);
  fsdp::python::bind_launch(module);
}
