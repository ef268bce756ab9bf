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
#include "fsdp/models/language_model.hpp"
#include "fsdp/models/projection.hpp"

namespace fsdp::models {

namespace detail {
struct BlockCache;
}

/// Causal self-attention over [batch, time, width].
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GPTConfig& config);
  at::Tensor forward(const at::Tensor& x, const detail::BlockCache& cache);

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
class BlockImpl : public DecoderBlock {
 public:
  explicit BlockImpl(const GPTConfig& config);
  at::Tensor forward(const at::Tensor& x, const detail::BlockCache& cache);

 private:
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  Attention attn{nullptr};
  MLP mlp{nullptr};
  double dropout_;
};
TORCH_MODULE(Block);

/// The whole model.
///
/// *Example*:
///
///     torch::manual_seed(1);
///     GPT model(preset("tiny"));
///     auto loss = model->forward(tokens, targets);
class GPTImpl : public LanguageModel {
 public:
  /// @throws Error kInvalidArgument, see validate()
  explicit GPTImpl(const GPTConfig& config);

  const GPTConfig& config() const { return config_; }
  ModelConfig model_config() const override { return config_; }

 protected:
  at::Tensor features(const at::Tensor& tokens, const Surroundings& around) override;
  at::Tensor head(const at::Tensor& features) override;

 private:
  GPTConfig config_;
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
  torch::nn::Linear lm_head{nullptr};
};
TORCH_MODULE(GPT);

}  // namespace fsdp::models
