// SPDX-License-Identifier: Apache-2.0
/// The checksum of everything in a checkpoint: CRC-32 as zlib, gzip and PNG have it. Sums of
/// neighbouring ranges combine into the sum of both, so each rank sums what it writes or reads and
/// the result is that of the whole tensor, whatever the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fsdp::archive {

/// The sum of `bytes` bytes that follow those summed in `before`. Costs about a tenth of a copy.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before = 0);

/// The sum of a range followed by one of `bytes` bytes, from their sums.
std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t bytes);

/// Eight hexadecimal digits, as the index writes a sum.
std::string crc32_text(std::uint32_t sum);

}  // namespace fsdp::archive
