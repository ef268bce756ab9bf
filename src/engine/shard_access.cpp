// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/shard_access.hpp"

#include <utility>

#include "engine/touch/touch.hpp"

namespace fsdp {

HeldMemory::HeldMemory(std::shared_ptr<ShardAccess> access, memory::Kind kind)
    : access_(std::move(access)), kind_(kind) {}

HeldMemory::HeldMemory(HeldMemory&& other) noexcept
    : access_(std::move(other.access_)),
      kind_(other.kind_),
      bytes_(std::exchange(other.bytes_, 0)) {}

HeldMemory::~HeldMemory() {
  if (access_ != nullptr) {
    access_->release_memory(kind_, bytes_);
  }
}

void HeldMemory::add(std::int64_t bytes) {
  access_->hold_memory(kind_, bytes);
  bytes_ += bytes;
}

Compared::Compared(std::shared_ptr<ShardAccess> access, HyperParameters of)
    : access_(std::move(access)), id_(access_->compare(std::move(of))) {}

Compared::~Compared() { access_->stop_comparing(id_); }

OwnShards::OwnShards() : no_touch_(engine::kTouchKey) {}

}  // namespace fsdp
