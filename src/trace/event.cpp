// SPDX-License-Identifier: Apache-2.0
#include "fsdp/trace/event.hpp"

namespace fsdp::trace {

const char* to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kTouch: return "touch";
    case EventKind::kGatherStart: return "gather start";
    case EventKind::kGatherWaitBegin: return "gather wait begin";
    case EventKind::kGatherWaitEnd: return "gather wait end";
    case EventKind::kFree: return "free";
    case EventKind::kReduceStart: return "reduce start";
    case EventKind::kReduceWaitBegin: return "reduce wait begin";
    case EventKind::kReduceWaitEnd: return "reduce wait end";
    case EventKind::kBackwardEnd: return "backward end";
  }
  return "unknown";
}

}  // namespace fsdp::trace
