// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm_memory.hpp"

#include <ATen/ops/from_blob.h>

#include <functional>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

at::Tensor ShmMemory::wrap(const Name& name, const std::shared_ptr<shm::Segment>& segment,
                           std::int64_t bytes, bool frees) {
  const auto deleter = [self = shared_from_this(), name, frees](void*) {
    self->forget(name, frees);
  };
  return at::from_blob(segment->data(), {bytes}, deleter, at::TensorOptions(at::kByte));
}

at::Tensor ShmMemory::make_buffer(std::int64_t bytes) { return make(bytes, true).first; }

std::pair<at::Tensor, std::uint32_t> ShmMemory::make_shared(std::int64_t bytes) {
  return make(bytes, false);
}

std::pair<at::Tensor, std::uint32_t> ShmMemory::make(std::int64_t bytes, bool frees) {
  auto segment = shm::Segment::create(group_->identity(), static_cast<std::size_t>(bytes));
  const Name name{group_->rank(), group_->publish_segment(*segment)};
  std::lock_guard lock(mutex_);
  known_[name] = {segment, /*is_held=*/true};
  return {wrap(name, segment, bytes, frees), name.second};
}

at::Tensor ShmMemory::open_shared(int owner, std::uint32_t id, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  Known& known = look_up({owner, id});
  known.is_held = true;
  return wrap({owner, id}, known.segment, bytes, /*frees=*/false);
}

/// Opens what is not known yet, and lets go of what had its entry before.
ShmMemory::Known& ShmMemory::look_up(const Name& name) {
  const auto found = known_.find(name);
  if (found != known_.end()) {
    return found->second;
  }
  std::erase_if(known_, [&](const auto& other) {
    return other.first.first == name.first &&
           shm::entry_of(other.first.second) == shm::entry_of(name.second) && !other.second.is_held;
  });
  const auto owner = static_cast<std::size_t>(name.first);
  auto segment =
      shm::Segment::open(group_->identity(), group_->segment_address(owner, name.second));
  return known_[name] = {std::move(segment), /*is_held=*/false};
}

void ShmMemory::forget(const Name& name, bool frees) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = known_.find(name);
  if (found == known_.end()) {
    return;
  }
  if (name.first == group_->rank()) {
    group_->withdraw_segment(name.second);
    if (frees) {
      // Peers map a buffer until its entry has another use.
      found->second.segment->free_pages();
    }
  }
  known_.erase(found);
}

std::optional<shm::Source> ShmMemory::locate(const void* data, std::size_t bytes) {
  const std::less_equal<const std::byte*> not_behind;
  const auto* begin = static_cast<const std::byte*>(data);
  std::lock_guard lock(mutex_);
  for (const auto& [name, known] : known_) {
    const std::byte* start = known.segment->data();
    if (known.is_held && not_behind(start, begin) &&
        not_behind(begin + bytes, start + known.segment->bytes())) {
      return shm::Source{.kind = shm::Source::kInPlace,
                         .owner = name.first,
                         .segment = name.second,
                         .offset = static_cast<std::uint64_t>(begin - start)};
    }
  }
  return std::nullopt;
}

const std::byte* ShmMemory::find(const shm::Source& source) {
  std::lock_guard lock(mutex_);
  return look_up({source.owner, source.segment}).segment->data() + source.offset;
}

}  // namespace fsdp::comm::detail
