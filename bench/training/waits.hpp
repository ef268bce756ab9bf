// SPDX-License-Identifier: Apache-2.0
/// How long the compute thread waited for collectives, from the engine's events.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "fsdp/trace/event.hpp"

namespace bench {

class Waits {
 public:
  void observe(const fsdp::trace::Event& event) {
    using enum fsdp::trace::EventKind;
    if (std::getenv("X_EVENTS")) {
      static FILE* f =
          std::fopen((std::string(std::getenv("X_EVENTS")) + std::getenv("RANK")).c_str(), "w");
      if (event.kind != kTouch) {
        std::fprintf(f, "%.3f %s %d\n", static_cast<double>(event.time_ns) * 1e-6,
                     fsdp::trace::to_string(event.kind), event.unit);
        if (event.kind == kBackwardEnd) {
          std::fflush(f);
        }
      }
    }
    if (event.kind == kGatherWaitBegin || event.kind == kReduceWaitBegin) {
      begin_ = event.time_ns;
    } else if (event.kind == kGatherWaitEnd) {
      gathers_[event.unit] += event.time_ns - begin_;
    } else if (event.kind == kReduceWaitEnd) {
      reductions_[event.unit] += event.time_ns - begin_;
    }
  }

  /// By unit, in ns, since the start.
  const std::map<int, std::int64_t>& gathers() const { return gathers_; }
  const std::map<int, std::int64_t>& reductions() const { return reductions_; }

 private:
  std::int64_t begin_ = 0;
  std::map<int, std::int64_t> gathers_;
  std::map<int, std::int64_t> reductions_;
};

}  // namespace bench
