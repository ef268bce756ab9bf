// SPDX-License-Identifier: Apache-2.0
/// What happens, for DebugOptions::observer.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "fsdp/trace/event.hpp"

namespace fsdp::engine {

class Events {
 public:
  explicit Events(std::function<void(const trace::Event&)> observer)
      : observer_(std::move(observer)) {}

  bool are_observed() const { return observer_ != nullptr; }
  void emit(trace::EventKind kind, int unit, int slot = -1, void* address = nullptr,
            std::int64_t bytes = 0) const {
    if (observer_) {
      observer_({kind, unit, slot, std::chrono::steady_clock::now().time_since_epoch().count(),
                 address, bytes});
    }
  }

 private:
  std::function<void(const trace::Event&)> observer_;
};

}  // namespace fsdp::engine
