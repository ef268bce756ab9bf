// SPDX-License-Identifier: Apache-2.0
/// The layout of a sample file: a header, the tokens as uint32 whose highest bit says that they are
/// learnt, and an entry per document. In the order of bytes of the machine: it stays in a cache.
#pragma once

#include <array>
#include <cstdint>

#include "fsdp/data/samples.hpp"

namespace fsdp::data::detail {

inline constexpr std::array<char, 8> kSampleMagic = {'F', 'S', 'D', 'P', 'S', 'M', 'P', '1'};
inline constexpr std::uint32_t kLearned = std::uint32_t{1} << 31;

struct SampleHeader {
  std::array<char, 8> magic = kSampleMagic;
  std::int64_t vocab = 0;
  std::uint64_t fingerprint = 0;
  SampleCounts counts;
};

struct SampleEntry {
  std::int64_t begin = 0, tokens = 0, first_learned = 0, is_text = 0;
};

}  // namespace fsdp::data::detail
