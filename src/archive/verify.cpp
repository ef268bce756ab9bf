// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "archive/checksum.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

/// The sum of `bytes` bytes that `read(offset, bytes, dst)` fetches a chunk at a time.
template <class Read>
std::uint32_t summed(std::int64_t bytes, std::vector<char>& chunk, Read&& read) {
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < bytes; done += kChunkBytes) {
    const std::int64_t part = std::min(kChunkBytes, bytes - done);
    read(done, part, chunk.data());
    sum = crc32(chunk.data(), static_cast<std::size_t>(part), sum);
  }
  return sum;
}

std::string mismatch(const std::string& what, std::uint32_t found, std::uint32_t expected) {
  return what + " has the sum " + crc32_text(found) + ", the index says " + crc32_text(expected) +
         ": its bytes were changed or damaged";
}

}  // namespace

std::vector<std::string> verify_checkpoint(const std::string& path) {
  std::vector<std::string> problems;
  std::vector<char> chunk(kChunkBytes);
  try {
    const Checkpoint checkpoint(path);
    for (const StoredFile& file : checkpoint.index().files) {
      const std::uint32_t sum =
          summed(file.head_bytes, chunk, [&](std::int64_t offset, std::int64_t bytes, void* dst) {
            checkpoint.read_head(file, offset, bytes, dst);
          });
      if (sum != file.head_crc32) {
        problems.push_back(
            mismatch("'" + path + "/" + file.name + "': its head", sum, file.head_crc32));
      }
    }
    for (const Tensor& tensor : checkpoint.index().tensors) {
      const std::uint32_t sum =
          summed(tensor.bytes, chunk, [&](std::int64_t offset, std::int64_t bytes, void* dst) {
            checkpoint.read(tensor, offset, bytes, dst);
          });
      if (sum != tensor.crc32) {
        problems.push_back(mismatch(
            "'" + path + "/" + tensor.file + "': tensor '" + tensor.name + "'", sum, tensor.crc32));
      }
    }
  } catch (const Error& error) {
    problems.push_back(error.text());
  }
  return problems;
}

}  // namespace fsdp::archive
