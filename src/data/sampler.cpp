// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/sampler.hpp"

#include <bit>

#include "fsdp/base/error.hpp"

namespace fsdp::data {
namespace {

/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014): the finaliser of
/// SplitMix64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr int kRounds = 6;

/// A permutation of the numbers of 2 x half_bits bits, whatever the round function. Luby and
/// Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions" (1988).
constexpr std::uint64_t feistel(std::uint64_t x, std::uint64_t key, int half_bits) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = x >> half_bits, right = x & mask;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t next =
        left ^
        (mix(key + mix(right + (std::uint64_t{1} << 40) * static_cast<unsigned>(round))) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

Windows::Windows(Range range, std::int64_t sequence) : range_(range), sequence_(sequence) {
  FSDP_CHECK(sequence > 0 && range.size() > sequence, ErrorCode::kInvalidArgument, "windows of ",
             sequence, " tokens and a target do not fit ", range.size(), " tokens");
  count_ = (range.size() - 1 + sequence - 1) / sequence;
}

std::int64_t Windows::begin(std::int64_t window) const {
  FSDP_ASSERT(window >= 0 && window < count_, "window ", window, " of ", count_);
  const std::int64_t last = range_.end - 1 - sequence_;
  const std::int64_t begin = range_.begin + window * sequence_;
  return begin < last ? begin : last;
}

Sampler::Sampler(std::int64_t windows, std::uint64_t seed) : windows_(windows), seed_(seed) {
  FSDP_CHECK(windows > 0, ErrorCode::kInvalidArgument, "a sampler of ", windows, " windows");
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(windows - 1)));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::int64_t Sampler::window(std::int64_t sample) const {
  FSDP_ASSERT(sample >= 0, "sample ", sample);
  const auto epoch = static_cast<std::uint64_t>(sample / windows_);
  const std::uint64_t key = mix(mix(seed_) + epoch);
  auto x = static_cast<std::uint64_t>(sample % windows_);
  // The network permutes up to four times as many numbers as there are windows: following the cycle
  // until it comes back into range permutes the windows alone.
  do {
    x = feistel(x, key, half_bits_);
  } while (x >= static_cast<std::uint64_t>(windows_));
  return static_cast<std::int64_t>(x);
}

std::vector<std::int64_t> Sampler::micro_batch(std::int64_t first_sample, std::int64_t micro,
                                               DataRank rank, std::int64_t batch) const {
  std::vector<std::int64_t> windows;
  windows.reserve(static_cast<std::size_t>(batch));
  const std::int64_t first = first_sample + (micro * rank.size + rank.rank) * batch;
  for (std::int64_t i = 0; i < batch; ++i) {
    windows.push_back(window(first + i));
  }
  return windows;
}

SamplerState Sampler::state(std::int64_t next_sample) const {
  return {.seed = seed_, .windows = windows_, .next_sample = next_sample};
}

std::int64_t Sampler::resume(const SamplerState& state) const {
  FSDP_CHECK(state.seed == seed_, ErrorCode::kMismatch, "the saved position belongs to seed ",
             state.seed, ", this run has seed ", seed_);
  FSDP_CHECK(state.windows == windows_, ErrorCode::kMismatch, "the saved position belongs to ",
             state.windows, " windows, this data has ", windows_,
             ": another text or another sequence length");
  // What follows is added to it.
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  FSDP_CHECK(state.next_sample >= 0 && state.next_sample <= kMost, ErrorCode::kCorrupt,
             "the saved position in the data is ", state.next_sample, ", must be 0 to ", kMost);
  return state.next_sample;
}

}  // namespace fsdp::data
