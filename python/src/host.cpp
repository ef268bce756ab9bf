// SPDX-License-Identifier: Apache-2.0
#include "base/host_language.hpp"

#include <pybind11/pybind11.h>

#include <atomic>
#include <csignal>

#include "fsdp/base/error.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

PyObject* error_type = nullptr;  // lives as long as the process

// --- Ctrl-C ------------------------------------------------------------------------------------
//
// Python's own handler of SIGINT notes the signal down and runs its part when Python code runs
// again, which a wait in C++ puts off. So a handler in front of it raises a flag that waits look
// at. The flag is lowered by Python's part of the handling, on_interrupt(); a program that installs
// a handler of its own by signal.signal() takes the place of both, and its waits go on.

std::atomic<bool> is_interrupted{false};
struct sigaction python_action{};

void on_signal(int signal) {
  is_interrupted.store(true, std::memory_order_relaxed);
  python_action.sa_handler(signal);
}

bool is_plain(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL &&
         action.sa_handler != SIG_IGN && action.sa_handler != on_signal;
}

/// Called from Python's main thread, after signal.signal(SIGINT, on_interrupt).
void watch_interrupts() {
  struct sigaction now{};
  if (::sigaction(SIGINT, nullptr, &now) == 0 && is_plain(now)) {
    python_action = now;
    now.sa_handler = on_signal;
    ::sigaction(SIGINT, &now, nullptr);
  }
}

void on_interrupt(const py::args&) {
  is_interrupted.store(false, std::memory_order_relaxed);
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw py::error_already_set();
}

// --- what the library asks -----------------------------------------------------------------------

/// Sets Python's error: KeyboardInterrupt where that is why a wait ended, else an fsdp.Error.
void set_error(const Error& error) {
  if (PyErr_CheckSignals() != 0) {
    return;
  }
  py::object made =
      py::reinterpret_steal<py::object>(PyObject_CallFunction(error_type, "s", error.what()));
  if (!made) {
    return;
  }
  made.attr("code") = to_string(error.code());
  made.attr("text") = error.text();
  PyErr_SetObject(error_type, made.ptr());
}

void raise(const Error& error) {
  const py::gil_scoped_acquire locked;
  set_error(error);
  throw py::error_already_set();
}

bool wants_out() { return is_interrupted.load(std::memory_order_relaxed); }

void* let_go() {
  return Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
}

void take(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void bind_host(py::module_& module) {
  py::dict members;
  members["code"] = "internal";
  members["text"] = "";
  error_type = PyErr_NewExceptionWithDoc(
      "fsdp.Error",
      "What the library throws. `code` is one of \"invalid argument\", \"mismatch\", \"not "
      "found\", "
      "\"corrupt\", \"time-out\", \"peer failed\", \"unsupported\", \"i/o\", \"internal\" (see "
      "docs/reference/errors.md); str() is the code in brackets and the text, `text` the text "
      "alone.",
      PyExc_RuntimeError, members.ptr());
  if (error_type == nullptr) {
    throw py::error_already_set();
  }
  module.attr("Error") = py::reinterpret_borrow<py::object>(error_type);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const Error& error) {
      set_error(error);
    }
  });
  base::set_host_language({.raise = raise, .wants_out = wants_out, .let_go = let_go, .take = take});
  module.def("on_interrupt", &on_interrupt, "Python's part of handling SIGINT.");
  module.def("watch_interrupts", &watch_interrupts,
             "Has waits end when SIGINT comes. Called on the main thread.");
}

}  // namespace fsdp::python
