// SPDX-License-Identifier: Apache-2.0
/// Reading a part of one tensor of an open file, the same for a checkpoint and for plain weights.
#pragma once

#include <cstdint>

#include "archive/file.hpp"
#include "fsdp/archive/index.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {

/// @throws Error kInvalidArgument for a range that leaves the tensor
inline void check_range(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes) {
  FSDP_CHECK(tensor_offset >= 0 && bytes >= 0 && bytes <= tensor.bytes - tensor_offset,
             ErrorCode::kInvalidArgument, "bytes ", tensor_offset, " to ", tensor_offset + bytes,
             " of '", tensor.name, "', which has ", tensor.bytes);
}

/// `bytes` of `tensor` from its byte `tensor_offset` on. @throws Error as check_range(), else as
/// File::read()
inline void read_tensor(const File& file, const Tensor& tensor, std::int64_t tensor_offset,
                        std::int64_t bytes, void* dst) {
  check_range(tensor, tensor_offset, bytes);
  file.read(dst, bytes, tensor.offset + tensor_offset);
}

}  // namespace fsdp::archive::detail
