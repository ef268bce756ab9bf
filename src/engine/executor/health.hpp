// SPDX-License-Identifier: Apache-2.0
/// Whether an engine may go on: the first failure, and whether the group has recovered since.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <exception>

#include "engine/touch/touch.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class Health {
 public:
  /// The job outlives it.
  explicit Health(comm::Job& job);

  /// Whether the group has recovered since the last renew(): what the engine holds is void.
  bool is_stale() const;
  bool has_failed() const { return failure_ != nullptr; }
  /// Throws the first failure, if there is one.
  void check() const;
  /// Begins anew with the recovered group.
  void renew();

  /// Does what ranks do together: a failure is the group's.
  template <class Action>
  void together(Action action) {
    // Gloo's threads inherit thread-local state, and our own copies need no touch.
    const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
    try {
      action();
    } catch (...) {
      // Ranks may have parted here: nothing that follows would match.
      fail();
    }
  }
  /// Called where an exception was caught: from here on every call throws it. The others are told,
  /// because what they wait for will not come.
  [[noreturn]] void fail();
  /// The same where nothing may be thrown, and of this rank alone.
  void note(std::exception_ptr failure) noexcept;

 private:
  comm::Job& job_;
  std::exception_ptr failure_;
  std::uint64_t generation_;  ///< the job's, at the last renew()
};

}  // namespace fsdp::engine
