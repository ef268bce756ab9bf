// SPDX-License-Identifier: Apache-2.0
/// Keeps LibTorch from writing a stack of thirty lines for each request that a lost store does not
/// answer: what happened is told by our own errors, once.
#pragma once

#include <c10/util/Logging.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "fsdp/base/log.hpp"

namespace fsdp::comm::detail {

/// While one lives, LibTorch's warnings are not written, unless TORCH_CPP_LOG_LEVEL or
/// FSDP_LOG=debug asks for them. Process-wide, so only around requests to a store. *Thread safety*:
/// internally locked.
class QuietStore {
 public:
  QuietStore() {
    std::lock_guard lock(shared().mutex);
    if (shared().count++ == 0 && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr &&
        base::log_level() != base::LogLevel::kDebug) {
      shared().level = std::exchange(FLAGS_caffe2_log_level, kError);
    }
  }
  QuietStore(const QuietStore&) = delete;
  QuietStore& operator=(const QuietStore&) = delete;
  ~QuietStore() {
    std::lock_guard lock(shared().mutex);
    if (--shared().count == 0 && shared().level != kUnset) {
      FLAGS_caffe2_log_level = std::exchange(shared().level, kUnset);
    }
  }

 private:
  static constexpr int kError = 2;
  static constexpr int kUnset = -1;
  struct Shared {
    std::mutex mutex;
    int count = 0;
    int level = kUnset;
  };
  static Shared& shared() {
    // Never destroyed: a thread that is stuck in a store may outlive main().
    static auto* all = new Shared;
    return *all;
  }
};

}  // namespace fsdp::comm::detail
