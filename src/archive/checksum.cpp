// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/checksum.hpp"

#include <libdeflate.h>
#include <zlib.h>

#include <cstdio>

namespace fsdp::archive {

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  return bytes == 0 ? before : libdeflate_crc32(before, data, bytes);
}

std::uint32_t crc32_joined(std::uint32_t first, std::uint32_t second, std::int64_t bytes) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, bytes));
}

std::string crc32_text(std::uint32_t sum) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

}  // namespace fsdp::archive
