// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_memory.hpp"

#include <ATen/ops/from_blob.h>

#include <functional>

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
  const std::uint32_t number = group_->publish_segment(*segment);
  const auto version = group_->segment_version(static_cast<std::size_t>(group_->rank()), number);
  const Name name{group_->rank(), number};
  std::lock_guard lock(mutex_);
  known_[name] = {segment, version, /*is_held=*/true};
  return {wrap(name, segment, bytes, frees), number};
}

at::Tensor ShmMemory::open_shared(int owner, std::uint32_t number, std::int64_t bytes) {
  find({.kind = shm::Source::kInPlace, .owner = owner, .segment = number});
  std::lock_guard lock(mutex_);
  Known& known = known_.at({owner, number});
  known.is_held = true;
  return wrap({owner, number}, known.segment, bytes, /*frees=*/false);
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
      // Peers map a buffer until its number has another use.
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
  const auto owner = static_cast<std::size_t>(source.owner);
  const Name name{source.owner, source.segment};
  std::lock_guard lock(mutex_);
  Known& known = known_[name];
  const std::uint32_t version = group_->segment_version(owner, source.segment);
  if (!known.is_held && (!known.segment || known.version != version)) {
    known = {};
    try {
      known.segment = shm::Segment::open(group_->identity(),
                                         group_->segment_address(owner, source.segment));
    } catch (...) {
      known_.erase(name);
      throw;
    }
    known.version = version;
  }
  return known.segment->data() + source.offset;
}

}  // namespace fsdp::comm::detail
