// SPDX-License-Identifier: Apache-2.0
/// A chain of equal linear layers between two layers of the root: the module whose collectives and
/// buffers can be counted by hand.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "fsdp/engine/units.hpp"

namespace fsdp::test {

struct ChainLinkImpl : torch::nn::Module {
  explicit ChainLinkImpl(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(ChainLink);

struct ChainImpl : torch::nn::Module {
  ChainImpl(int links_in, std::int64_t width)
      : first(register_module("first", torch::nn::Linear(width, width))),
        last(register_module("last", torch::nn::Linear(width, width))) {
    for (int i = 0; i < links_in; ++i) {
      links.push_back(register_module("link" + std::to_string(i), ChainLink(width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x);
    for (ChainLink& link : links) {
      x = link(x);
    }
    return last(x);
  }
  torch::nn::Linear first, last;
  std::vector<ChainLink> links;
};
TORCH_MODULE(Chain);

inline Units chain_units() { return units_of<ChainLink>(); }

}  // namespace fsdp::test
