// SPDX-License-Identifier: Apache-2.0
/// Parameters of any sizes whose gradient is whatever one likes.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::test {

struct Weights : torch::nn::Module {
  explicit Weights(std::vector<std::int64_t> sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      weights.push_back(
          register_parameter("w" + std::to_string(i), torch::ones({sizes[i]}, torch::kDouble)));
    }
  }
  at::Tensor sum() {
    at::Tensor total = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& weight : weights) {
      total = total + weight.sum();
    }
    return total;
  }
  std::vector<at::Tensor> weights;
};

}  // namespace fsdp::test
