// SPDX-License-Identifier: Apache-2.0
/// What all fuzzers of readers do with their bytes: the first one says as what the rest is read,
/// and bad bytes may be refused but break no invariant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fsdp/base/error.hpp"

namespace fsdp::fuzz {

template <class ReadAs>
int run_reader(const std::uint8_t* data, std::size_t size, ReadAs read_as) {
  if (size == 0) {
    return 0;
  }
  try {
    read_as(static_cast<char>(data[0]),
            std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const Error& error) {
    // A broken invariant of ours is no answer to bad bytes.
    if (error.code() == ErrorCode::kInternal) {
      std::abort();
    }
  }
  return 0;
}

}  // namespace fsdp::fuzz
