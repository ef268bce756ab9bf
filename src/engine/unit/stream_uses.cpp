// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/stream_uses.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace fsdp::engine {

c10::Stream StreamUses::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

StreamUses::Use& StreamUses::use_of(const c10::Stream& stream) {
  const auto found = std::ranges::find(uses_, stream, &Use::stream);
  return found != uses_.end() ? *found
                              : uses_.emplace_back(Use{.stream = stream,
                                                       .event = c10::Event(device_.type()),
                                                       .is_there = false,
                                                       .is_recorded = false});
}

void StreamUses::note() {
  if (device_.is_cpu()) {
    return;
  }
  Use& use = use_of(current());
  use.is_there = true;
  use.is_recorded = false;
}

void StreamUses::mark() {
  if (device_.is_cpu()) {
    return;
  }
  Use& use = use_of(current());
  use.event.record(use.stream);
  use.is_there = use.is_recorded = true;
}

void StreamUses::come_after() {
  if (uses_.empty()) {
    return;
  }
  const c10::Stream stream = current();
  for (Use& use : uses_) {
    if (!use.is_there || use.stream == stream) {
      continue;
    }
    if (!use.is_recorded) {
      use.event.record(use.stream);
    }
    stream.wait(use.event);
  }
}

void StreamUses::clear() {
  for (Use& use : uses_) {
    use.is_there = false;
  }
}

}  // namespace fsdp::engine
