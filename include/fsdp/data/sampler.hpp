// SPDX-License-Identifier: Apache-2.0
/// Which window of the text each sample is, computed from its number alone: the same for any number
/// of ranks, at any time, after any restart. Nothing is stored and nothing is communicated.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/data/corpus.hpp"

namespace fsdp::data {

/// Cuts a range of tokens into windows of `sequence` tokens and their targets (one token more).
/// Windows follow one another without overlap; when the range does not divide, a last one ends
/// where the range ends, so no token is left out.
///
/// *Invariants*: at least one window. *Thread safety*: immutable.
class Windows {
 public:
  /// @throws Error kInvalidArgument when the range does not hold sequence + 1 tokens
  Windows(Range range, std::int64_t sequence);

  std::int64_t count() const { return count_; }
  std::int64_t sequence() const { return sequence_; }
  /// Position in the corpus of the first token of a window.
  std::int64_t begin(std::int64_t window) const;

 private:
  Range range_;
  std::int64_t sequence_;
  std::int64_t count_;
};

/// A stream of samples that a checkpoint can name.
struct SamplerState {
  std::uint64_t seed = 0;
  std::int64_t windows = 0;
  std::int64_t next_sample = 0;  ///< counts all samples of all ranks since the start
  bool operator==(const SamplerState&) const = default;
};

/// A rank's place among those that see different data.
struct DataRank {
  int rank = 0;
  int size = 1;
};

/// Samples in a random order in which each epoch visits every window once, each epoch in another
/// order: a Feistel network keyed by seed and epoch permutes the window numbers.
///
/// *Thread safety*: immutable. *Example*: `sampler.window(step * global_batch + i)`.
class Sampler {
 public:
  /// @throws Error kInvalidArgument when there is no window
  Sampler(std::int64_t windows, std::uint64_t seed);

  /// The window of global sample `sample`, counted since the start of training.
  std::int64_t window(std::int64_t sample) const;

  /// The windows of one micro-step of one rank: samples
  /// `first_sample + (micro * ranks + rank) * batch` and the `batch - 1` after it.
  std::vector<std::int64_t> micro_batch(std::int64_t first_sample, std::int64_t micro,
                                        DataRank rank, std::int64_t batch) const;

  SamplerState state(std::int64_t next_sample) const;
  /// Where to go on. @throws Error kMismatch when the state belongs to another seed or other data,
  /// for then its position means nothing
  std::int64_t resume(const SamplerState& state) const;

 private:
  std::int64_t windows_;
  std::uint64_t seed_;
  int half_bits_;
};

}  // namespace fsdp::data
