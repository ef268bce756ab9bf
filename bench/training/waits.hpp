// SPDX-License-Identifier: Apache-2.0
/// How long the compute thread waited for collectives, from the engine's events.
#pragma once

#include <cstdint>
#include <map>

#include "fsdp/trace/event.hpp"

namespace bench {

class Waits {
 public:
  void observe(const fsdp::trace::Event& event) {
    using enum fsdp::trace::EventKind;
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
