// SPDX-License-Identifier: Apache-2.0
/// The sum of bytes that are read a chunk at a time, and what is said when it is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "archive/checksum.hpp"

namespace fsdp::archive::detail {

/// The sum of `bytes` bytes that `read(offset, bytes, dst)` fetches.
template <class Read>
std::uint32_t summed(std::int64_t bytes, Read&& read) {
  constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
  std::vector<char> chunk(static_cast<std::size_t>(std::min(kChunkBytes, bytes)));
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < bytes; done += kChunkBytes) {
    const std::int64_t part = std::min(kChunkBytes, bytes - done);
    read(done, part, chunk.data());
    sum = crc32(chunk.data(), static_cast<std::size_t>(part), sum);
  }
  return sum;
}

/// Follows the name of what was summed.
inline std::string mismatch(std::uint32_t found, std::uint32_t expected) {
  return " has the sum " + crc32_text(found) + ", the index says " + crc32_text(expected) +
         ": its bytes were changed or damaged";
}

}  // namespace fsdp::archive::detail
