// SPDX-License-Identifier: Apache-2.0
#include "comm/tensor_at.hpp"

#include <ATen/ops/from_blob.h>

namespace fsdp::comm {

at::Tensor tensor_at(void* address, std::int64_t numel, at::ScalarType dtype, c10::Device device) {
  const std::int64_t sizes[] = {numel};
  return at::for_blob(address, sizes)
      .target_device(device)
      .options(at::TensorOptions(dtype).device(device))
      .make_tensor();
}

}  // namespace fsdp::comm
