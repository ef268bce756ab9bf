// SPDX-License-Identifier: Apache-2.0
/// GPT-2 as ordinary LibTorch modules: learned positions, pre-LayerNorm blocks, causal attention,
/// GELU in its tanh form, a tied or a separate head. Knows nothing of sharding. Parameters have the
/// names and shapes of Hugging Face's GPT-2, so a saved file opens there.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "fsdp/models/gpt_config.hpp"

namespace fsdp::models {

/// y = x W + b with W of shape [in, out], as GPT-2 stores its weights (Hugging Face's `Conv1D`).
class ProjectionImpl : public torch::nn::Module {
 public:
  /// Weights are drawn from a normal distribution of deviation `stddev`; biases are zero.
  ProjectionImpl(std::int64_t in, std::int64_t out, double stddev);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;
};
TORCH_MODULE(Projection);

/// Causal self-attention over [batch, time, width].
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GPTConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Projection c_attn{nullptr}, c_proj{nullptr};
  std::int64_t heads_;
  double dropout_;
};
TORCH_MODULE(Attention);

/// The position-wise part: width to 4 x width and back.
class MLPImpl : public torch::nn::Module {
 public:
  explicit MLPImpl(const GPTConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Projection c_fc{nullptr}, c_proj{nullptr};
};
TORCH_MODULE(MLP);

/// One transformer block: the usual unit of sharding.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GPTConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  Attention attn{nullptr};
  MLP mlp{nullptr};
  double dropout_;
};
TORCH_MODULE(Block);

/// The whole model.
///
/// *Invariants*: weights are drawn from LibTorch's default generator in a fixed order, so that
/// `torch::manual_seed` before construction decides them. *Thread safety*: as torch::nn::Module.
/// *Example*:
///
///     torch::manual_seed(1);
///     GPT model(preset("tiny"));
///     auto loss = model->forward(tokens, targets);
class GPTImpl : public torch::nn::Module {
 public:
  /// @throws Error kInvalidArgument, see validate()
  explicit GPTImpl(const GPTConfig& config);

  /// Logits [batch, time, vocab] of int64 tokens [batch, time], in the weights' dtype.
  /// @throws Error kInvalidArgument for other dimensions or a time beyond the context
  at::Tensor forward(const at::Tensor& tokens);
  /// Mean cross-entropy in nats of `targets` [batch, time], a scalar.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets);

  const GPTConfig& config() const { return config_; }

 private:
  GPTConfig config_;
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(GPT);

/// How to draw tokens from a model.
struct GenerateOptions {
  std::int64_t tokens = 200;  ///< how many to draw
  double temperature = 0.8;   ///< 0 takes the likeliest token
  std::int64_t top_k = 40;    ///< draw among the k likeliest; 0 for all
  std::uint64_t seed = 1;
};

/// Continues `prompt` (at least one token) and returns the new tokens. The model sees the last
/// `context` tokens. Runs without gradients and in evaluation mode, and calls forward exactly
/// `options.tokens` times, so ranks that call it together stay together.
/// @throws Error kInvalidArgument for an empty prompt or a token outside the vocabulary
std::vector<std::int64_t> generate(GPT& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options = {});

}  // namespace fsdp::models
