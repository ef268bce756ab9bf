// SPDX-License-Identifier: Apache-2.0
/// Where each parameter of a unit lies in the unit's flat buffer, and which part of it each rank
/// owns. Integers only: the engine, the checkpoints and the planner all read this one table.
///
///     parameters   | a a a a a a a | b b b | c c c c |
///     flat buffer  | a a a a a a a b b b c c c c . . |     '.' is padding, always zero
///     slices       |  rank 0   |  rank 1   | rank 2  |     equal, aligned
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::layout {

/// The part of one parameter that lies in a run of slices. Empty pieces have numel 0.
struct ParameterPart {
  std::int64_t shard_offset = 0;      ///< first element's position in the run
  std::int64_t parameter_offset = 0;  ///< and in the flattened parameter
  std::int64_t numel = 0;
};

/// The layout of one unit: parameters back to back, then padding, cut into `world_size` equal
/// slices.
///
/// *Invariants*: slices are equal and multiples of the alignment; every element of every parameter
/// lies in exactly one slice; padding comes last. *Thread safety*: immutable.
/// *Example*: `UnitLayout({35, 7}, 4, 1)` has slices of 11 elements and 2 of padding.
class UnitLayout {
 public:
  /// `numels` may hold zeros; `align_numel` >= 1 elements.
  /// @throws Error kInvalidArgument for a negative size, world_size < 1 or align_numel < 1
  UnitLayout(std::vector<std::int64_t> numels, int world_size, std::int64_t align_numel);

  int world_size() const { return world_size_; }
  int parameters() const { return static_cast<int>(numels_.size()); }
  /// Elements of parameter `i` and its first element's position in the flat buffer.
  std::int64_t numel(int i) const { return numels_[static_cast<std::size_t>(i)]; }
  std::int64_t offset(int i) const { return offsets_[static_cast<std::size_t>(i)]; }
  /// Elements without padding, of one slice, and of all slices.
  std::int64_t total_numel() const { return total_numel_; }
  std::int64_t shard_numel() const { return shard_numel_; }
  std::int64_t padded_numel() const { return shard_numel_ * world_size_; }
  /// What lies of parameter `i` in slices [first, first + count); offsets are from the first one.
  ParameterPart piece(int i, int first, int count = 1) const;

 private:
  std::vector<std::int64_t> numels_;
  std::vector<std::int64_t> offsets_;
  int world_size_;
  std::int64_t total_numel_ = 0;
  std::int64_t shard_numel_ = 0;
};

}  // namespace fsdp::layout
