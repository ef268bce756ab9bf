// SPDX-License-Identifier: Apache-2.0
/// What the C++ blocks of README.md and docs/ may name without saying where it comes from. Declared
/// and nowhere defined: tools/check_snippets.py has the blocks compiled, not linked.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "fsdp/models/gpt.hpp"
#include "fsdp/timeline/trace_files.hpp"
#include "fsdp/tokens/tokenizer.hpp"

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Block);

struct Config {};

struct GPTImpl : torch::nn::Module {
  explicit GPTImpl(const Config& config);
  /// The loss.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(GPT);

extern fsdp::World world;
extern Config config;
extern GPT model;
extern fsdp::Sharded sharded;
extern torch::optim::AdamW optimizer;
extern at::Tensor x;
extern at::Tensor y;
extern at::Tensor loss;
