// SPDX-License-Identifier: Apache-2.0
#include "comm/staging_pool.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>

namespace fsdp::comm::detail {

std::int64_t StagingPool::reserve(std::int64_t bytes, int in_flight) {
  reservations_.emplace_back(bytes, in_flight);
  restore();
  return idle_bytes();
}

std::int64_t StagingPool::idle_bytes() const {
  std::int64_t total = 0;
  for (const at::Tensor& staging : idle_) {
    total += staging.numel();
  }
  return total;
}

void StagingPool::restore() {
  std::sort(idle_.begin(), idle_.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return a.numel() > b.numel(); });
  for (const auto& [bytes, in_flight] : reservations_) {
    for (int i = 0; i < in_flight && bytes > 0; ++i) {
      const auto index = static_cast<std::size_t>(i);
      if (index == idle_.size()) {
        idle_.emplace_back();
      }
      if (!idle_[index].defined() || idle_[index].numel() < bytes) {
        idle_[index] = at::Tensor();
        idle_[index] = allocate(bytes);
      }
    }
  }
}

at::Tensor StagingPool::take(std::int64_t bytes) {
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (it->numel() >= bytes && (best == idle_.end() || it->numel() < best->numel())) {
      best = it;
    }
  }
  if (best == idle_.end()) {
    // Too small buffers make room for one that fits.
    if (!idle_.empty()) {
      idle_.pop_back();
    }
    return allocate(bytes);
  }
  at::Tensor staging = std::move(*best);
  idle_.erase(best);
  return staging;
}

at::Tensor StagingPool::allocate(std::int64_t bytes) const {
  return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(memory_ == Memory::kPinned));
}

}  // namespace fsdp::comm::detail
