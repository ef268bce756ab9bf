// SPDX-License-Identifier: Apache-2.0
/// What the engine did, as values: for tests, timelines and reports.
#pragma once

#include <cstdint>

namespace fsdp::trace {

/// What happened.
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

/// The name of a kind, for example "gather start".
const char* to_string(EventKind kind);

/// One event of one rank.
struct Event {
  EventKind kind;
  int unit = -1;             ///< index of the unit; -1 for kBackwardEnd
  int slot = -1;             ///< gather slot or reduce buffer; -1 when none is concerned
  std::int64_t time_ns = 0;  ///< steady clock
  /// Where the unit's bytes land or lie, in kGather* events; else null.
  const void* data = nullptr;
  std::int64_t bytes = 0;  ///< of the unit, padding included, in kGather* events; else 0
};

}  // namespace fsdp::trace
