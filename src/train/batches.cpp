// SPDX-License-Identifier: Apache-2.0
#include "train/batches.hpp"

#include <torch/torch.h>

namespace fsdp::train::detail {

Batch load(const data::Corpus& corpus, const data::Windows& windows,
           const std::vector<std::int64_t>& indices) {
  const std::int64_t length = windows.sequence() + 1;
  const at::Tensor rows = torch::empty({std::ssize(indices), length}, torch::kInt64);
  auto* row = rows.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    corpus.read(windows.begin(index), {row, static_cast<std::size_t>(length)});
    row += length;
  }
  return {.tokens = rows.narrow(1, 0, windows.sequence()).contiguous(),
          .targets = rows.narrow(1, 1, windows.sequence()).contiguous()};
}

}  // namespace fsdp::train::detail
