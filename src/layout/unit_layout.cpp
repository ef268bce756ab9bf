// SPDX-License-Identifier: Apache-2.0
#include "layout/unit_layout.hpp"

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::layout {

namespace {
std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
}  // namespace

UnitLayout::UnitLayout(std::vector<std::int64_t> numels, int world_size, std::int64_t align_numel)
    : numels_(std::move(numels)), world_size_(world_size) {
  FSDP_CHECK(world_size >= 1, ErrorCode::kInvalidArgument, "world size is ", world_size,
             ", must be at least 1");
  FSDP_CHECK(align_numel >= 1, ErrorCode::kInvalidArgument, "slice alignment is ", align_numel,
             " elements, must be at least 1");
  offsets_.reserve(numels_.size());
  for (std::int64_t numel : numels_) {
    FSDP_CHECK(numel >= 0, ErrorCode::kInvalidArgument, "parameter ", offsets_.size(), " has ",
               numel, " elements");
    offsets_.push_back(total_numel_);
    total_numel_ += numel;
  }
  shard_numel_ = divide_up(divide_up(total_numel_, world_size), align_numel) * align_numel;
}

ParameterPart UnitLayout::piece(int i, int first, int count) const {
  const std::int64_t slice_begin = shard_numel_ * first;
  const std::int64_t slice_end = slice_begin + shard_numel_ * count;
  const std::int64_t begin = std::clamp(offset(i), slice_begin, slice_end);
  const std::int64_t end = std::clamp(offset(i) + numel(i), slice_begin, slice_end);
  if (begin >= end) {
    // An empty piece still has a place, so that views of it are well formed.
    return {.shard_offset = begin - slice_begin, .parameter_offset = 0, .numel = 0};
  }
  return {.shard_offset = begin - slice_begin,
          .parameter_offset = begin - offset(i),
          .numel = end - begin};
}

}  // namespace fsdp::layout
