// SPDX-License-Identifier: Apache-2.0
/// The language around this library, where that is not C++: a binding says once what its
/// interpreter wants to know. Without a binding all of it does nothing.
///
/// NOTE [an interpreter around the library]
/// Three things cannot be done from the outside. LibTorch turns every C++ exception that leaves an
/// operator into one of the interpreter's plain errors, so an Error has to become the interpreter's
/// own before that. Who waits for other ranks must notice Ctrl-C, which the interpreter only notes
/// down until its own code runs again. And a thread that comes in by a property of a tensor holds
/// the interpreter's lock: it has to let go of it before it waits for one of ours, as whoever has
/// ours may need the interpreter's.
#pragma once

#include "fsdp/base/error.hpp"

namespace fsdp::base {

/// *Thread safety*: the functions are called from any thread; they are never taken away again.
struct HostLanguage {
  /// Throws what the interpreter makes of `error`; returns where it makes nothing of it.
  void (*raise)(const Error& error) = nullptr;
  /// Whether the user has asked, by Ctrl-C, to get out of what is under way.
  bool (*wants_out)() = nullptr;
  /// Lets go of the interpreter's lock if this thread has it, and returns what take() needs.
  void* (*let_go)() = nullptr;
  void (*take)(void* let_go) = nullptr;
};

/// Called once, before the library is used.
void set_host_language(const HostLanguage& language);

/// Called where an Error is about to leave by an operator or by autograd.
void raise_for_host(const Error& error);

/// Asked by waits, about ten times per second. Cheap as long as nobody wants out.
bool host_wants_out();

/// As long as it lives, this thread does not hold the interpreter's lock.
class OutsideHost {
 public:
  OutsideHost();
  ~OutsideHost();
  OutsideHost(const OutsideHost&) = delete;
  OutsideHost& operator=(const OutsideHost&) = delete;

 private:
  void* let_go_;
};

}  // namespace fsdp::base
