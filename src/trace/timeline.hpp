// SPDX-License-Identifier: Apache-2.0
/// From events, which are moments, to slices, which are drawn. No clock, no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/trace/recorder.hpp"

namespace fsdp::trace {

/// The rows of a rank, in the order in which they are drawn.
enum class Track {
  kProgram,  ///< the program's regions
  kCompute,  ///< which unit's operators run, and waits
  kGather,   ///< weights on their way, from the issue of an all-gather until they are taken
  kReduce,   ///< gradients on their way
};

/// What a slice is about.
enum class SliceKind {
  kRegion,
  kCompute,
  kWaitGather,
  kWaitReduce,
  kGather,
  kUnusedGather,  ///< freed before an operator took it
  kReduce,
};

struct Slice {
  Track track = Track::kCompute;
  int lane = 0;  ///< slices of one lane do not overlap, except that regions lie within each other
  SliceKind kind = SliceKind::kCompute;
  int unit = -1;          ///< -1 of a region
  std::string name = {};  ///< of a region
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t bytes = 0;  ///< of the unit, of a gather
  std::int64_t wait_ns =
      0;  ///< of a gather or reduction: how long the compute thread waited for it
};

/// From a gather to the computation that took its weights; indices of slices.
struct Arrow {
  std::size_t gather = 0, compute = 0;
};

/// A number that holds from its time on.
struct Level {
  std::string name;
  std::int64_t time_ns = 0;
  double value = 0;
};

struct Timeline {
  std::vector<Slice> slices = {};
  std::vector<Arrow> arrows = {};
  /// "gathered bytes" (weights from the issue of their gather until they are freed), and samples.
  std::vector<Level> levels = {};
  std::size_t dropped = 0;
};

/// A unit computes from its touch, or from the end of the wait that the touch began with, until
/// another unit is touched, a reduction is waited for, or backward ends: what the program does
/// beside the units counts for the unit before it. What is under way at the end of the recording is
/// left out.
Timeline make_timeline(const Recording& recording);

}  // namespace fsdp::trace
