// SPDX-License-Identifier: Apache-2.0
/// What the engine did, as values: for tests, timelines and reports.
#pragma once

#include <cstdint>

namespace fsdp::trace {

enum class EventKind {
  kTouch,            ///< an operator takes weights of this unit
  kGatherStart,      ///< an all-gather was issued
  kGatherWaitBegin,  ///< the compute thread needs the result
  kGatherWaitEnd,
  kFree,         ///< the gathered weights are gone
  kReduceStart,  ///< a reduce-scatter was issued
  kReduceWaitBegin,
  kReduceWaitEnd,
  kBackwardEnd,  ///< unit is -1
};

const char* to_string(EventKind kind);

struct Event {
  EventKind kind;
  int unit = -1;
  int slot = -1;
  std::int64_t time_ns = 0;  ///< steady clock
  /// Where the unit's bytes land or lie, during kGather* events; else null.
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

}  // namespace fsdp::trace
