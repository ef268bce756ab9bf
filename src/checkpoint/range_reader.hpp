// SPDX-License-Identifier: Apache-2.0
/// Reads a rank's part of stored tensors, converting where dtypes or memory orders differ.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/items.hpp"
#include "fsdp/archive/reader.hpp"

namespace fsdp::checkpoint::detail {

/// Sum and length of what a rank has read of one tensor.
struct ReadSum {
  std::uint32_t crc32 = 0;
  std::int64_t bytes = 0;
};

/// Where stored tensors are read from: archive::Checkpoint's or archive::WeightSource's functions.
struct StoredBytes {
  std::function<void(const archive::Tensor&, std::int64_t tensor_offset, std::int64_t bytes,
                     void* dst)>
      read;
  std::function<void(const archive::Tensor&, std::int64_t tensor_offset, std::int64_t bytes)>
      will_read;
};

/// `source`, a checkpoint or weights, must outlive the result.
template <class Source>
StoredBytes bytes_of(const Source& source) {
  return {.read = [&source](const archive::Tensor& tensor, std::int64_t offset, std::int64_t bytes,
                            void* dst) { source.read(tensor, offset, bytes, dst); },
          .will_read = [&source](const archive::Tensor& tensor, std::int64_t offset,
                                 std::int64_t bytes) { source.will_read(tensor, offset, bytes); }};
}

class RangeReader {
 public:
  /// Without `sums`, those returned are zero.
  RangeReader(StoredBytes stored, bool sums) : stored_(std::move(stored)), sums_(sums) {}

  /// This rank's part of `stored` into the item's values. Where dtype and order are those of the
  /// file, straight into their memory.
  ReadSum read(const archive::Tensor& stored, const Item& item);

  /// Asks the system to fetch what read() takes of it, and returns how many bytes those are.
  std::int64_t will_read(const archive::Tensor& stored, const Item& item) const;

 private:
  ReadSum read_range(const archive::Tensor& stored, std::int64_t begin, const at::Tensor& dst);
  ReadSum read_permuted(const archive::Tensor& stored, const Item& item);
  ReadSum read_whole(const archive::Tensor& stored, const Item& item);

  StoredBytes stored_;
  bool sums_;
  std::vector<char> staging_;
};

}  // namespace fsdp::checkpoint::detail
