// SPDX-License-Identifier: Apache-2.0
/// The parts of the extension fsdp._C. Each adds its types and functions to the module; what Python
/// users see is python/fsdp, which is made of these.
///
/// NOTE [the interpreter's lock]
/// All that may wait for other ranks, and all that takes the engine's lock, runs without the
/// interpreter's: Unlocked. Tensors are held by reference count and need neither.
#pragma once

#include <pybind11/pybind11.h>

namespace fsdp::python {

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;

/// Error, and what the library asks of Python. See NOTE [an interpreter around the library].
void bind_host(py::module_& module);
void bind_world(py::module_& module);
void bind_sharded(py::module_& module);
void bind_autograd(py::module_& module);
void bind_optimizers(py::module_& module);
void bind_checkpoints(py::module_& module);
void bind_launch(py::module_& module);

}  // namespace fsdp::python
