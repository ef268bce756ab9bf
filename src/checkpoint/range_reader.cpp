// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/range_reader.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "archive/checksum.hpp"

namespace fsdp::checkpoint::detail {
namespace {
/// Read, summed and converted at a time.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
}  // namespace

ReadSum RangeReader::read(const archive::Tensor& stored, const Item& item) {
  switch (item.holding) {
    case Holding::kPermuted: return read_permuted(stored, item);
    case Holding::kWhole: return read_whole(stored, item);
    case Holding::kSlice: break;
  }
  // Of what several ranks hold, one answers for each element: the others' sums would count it
  // twice.
  const std::int64_t after = item.answered_begin + item.answered_numel;
  read_range(stored, item.begin, item.values.narrow(0, 0, item.answered_begin));
  read_range(stored, item.begin + after, item.values.narrow(0, after, item.values.numel() - after));
  return read_range(stored, item.begin + item.answered_begin, item.answered());
}

std::int64_t RangeReader::will_read(const archive::Tensor& stored, const Item& item) const {
  const bool is_slice = item.holding == Holding::kSlice;
  const auto itemsize =
      static_cast<std::int64_t>(c10::elementSize(dtype_of(stored.dtype, stored.name)));
  const std::int64_t offset = is_slice ? item.begin * itemsize : 0;
  const std::int64_t bytes = is_slice ? item.values.numel() * itemsize : stored.bytes;
  stored_.will_read(stored, offset, bytes);
  return bytes;
}

/// Elements [begin, begin + dst.numel()) of `stored` into `dst`, 1-D and contiguous.
ReadSum RangeReader::read_range(const archive::Tensor& stored, std::int64_t begin,
                                const at::Tensor& dst) {
  const at::ScalarType dtype = dtype_of(stored.dtype, stored.name);
  const auto itemsize = static_cast<std::int64_t>(c10::elementSize(dtype));
  const bool is_direct = dtype == dst.scalar_type() && dst.is_cpu();
  const std::int64_t chunk = kChunkBytes / itemsize;
  ReadSum sum;
  for (std::int64_t done = 0; done < dst.numel(); done += chunk) {
    const std::int64_t count = std::min(chunk, dst.numel() - done);
    const std::int64_t bytes = count * itemsize;
    char* target = is_direct ? static_cast<char*>(dst.data_ptr()) + done * itemsize : nullptr;
    if (!is_direct) {
      staging_.resize(static_cast<std::size_t>(kChunkBytes));
      target = staging_.data();
    }
    stored_.read(stored, (begin + done) * itemsize, bytes, target);
    if (sums_) {
      sum.crc32 = archive::crc32(target, static_cast<std::size_t>(bytes), sum.crc32);
    }
    sum.bytes += bytes;
    if (!is_direct) {
      dst.narrow(0, done, count).copy_(at::from_blob(target, {count}, at::TensorOptions(dtype)));
    }
  }
  return sum;
}

/// All of a stored tensor into the memory order that it has here, of which this rank keeps a part.
ReadSum RangeReader::read_permuted(const archive::Tensor& stored, const Item& item) {
  const at::Tensor whole = at::empty({archive::numel(item.shape)}, item.values.options());
  const ReadSum sum = read_range(stored, 0, whole);
  const at::Tensor flat = at::empty_like(whole);
  flat.as_strided(item.shape, item.strides).copy_(whole.view(item.shape));
  item.values.copy_(flat.narrow(0, item.begin, item.values.numel()));
  return sum;
}

ReadSum RangeReader::read_whole(const archive::Tensor& stored, const Item& item) {
  if (item.values.is_contiguous()) {
    return read_range(stored, 0, item.values.view({-1}));
  }
  const at::Tensor whole = at::empty({item.values.numel()}, item.values.options());
  const ReadSum sum = read_range(stored, 0, whole);
  item.values.copy_(whole.view(item.values.sizes()));
  return sum;
}

}  // namespace fsdp::checkpoint::detail
