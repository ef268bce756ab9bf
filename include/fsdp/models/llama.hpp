// SPDX-License-Identifier: Apache-2.0
/// Llama as ordinary LibTorch modules: RMSNorm, rotary positions, grouped-query attention, SwiGLU;
/// and Mistral, Qwen2 and Qwen3, which differ in biases, norms of heads and windows.
/// Knows nothing of sharding. Parameters have the names and shapes of Hugging Face's Llama, so
/// published files open here and saved ones there. Touvron et al., "LLaMA: Open and Efficient
/// Foundation Language Models" (2023).
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "fsdp/models/language_model.hpp"
#include "fsdp/models/llama_config.hpp"
#include "fsdp/models/projection.hpp"

namespace fsdp::models {

namespace detail {
struct BlockCache;
}

/// Cosines and sines of the angles by which heads are rotated, [time, head width] each, or
/// [batch, 1, time, head width].
struct Rotation {
  at::Tensor cos, sin;
};

/// x / sqrt(mean(x^2) + eps) x weight. Zhang and Sennrich, "Root Mean Square Layer Normalization"
/// (2019).
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(std::int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

/// Causal self-attention over [batch, time, width] whose key heads serve several query heads.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const Rotation& rotation,
                     const detail::BlockCache& cache);

 private:
  Dense q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  RMSNorm q_norm{nullptr}, k_norm{nullptr};  ///< Qwen3's
  std::int64_t heads_, kv_heads_, head_width_;
  double dropout_;
};
TORCH_MODULE(LlamaAttention);

/// The position-wise part: down(silu(gate(x)) x up(x)). Shazeer, "GLU Variants Improve
/// Transformer" (2020).
class LlamaMLPImpl : public torch::nn::Module {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Dense gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaMLP);

/// One transformer block: the usual unit of sharding.
class LlamaBlockImpl : public DecoderBlock {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const Rotation& rotation,
                     const detail::BlockCache& cache);

 private:
  RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  LlamaAttention self_attn{nullptr};
  LlamaMLP mlp{nullptr};
};
TORCH_MODULE(LlamaBlock);

/// Everything but the head: Hugging Face's "model.".
class LlamaBodyImpl : public torch::nn::Module {
 public:
  explicit LlamaBodyImpl(const LlamaConfig& config);
  /// `positions` as LanguageModel::positions() has them.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions,
                     const Surroundings& around, const BlockRunner& run = {});

  torch::nn::Embedding embed_tokens{nullptr};

 private:
  Rotation rotation(const at::Tensor& positions, const at::Tensor& like) const;

  torch::nn::ModuleList layers{nullptr};
  RMSNorm norm{nullptr};
  std::vector<float> frequencies_;
  std::vector<std::int64_t> windows_;  ///< of each block; 0 for none
};
TORCH_MODULE(LlamaBody);

/// The whole model, of Llama or a relative.
class LlamaImpl : public LanguageModel {
 public:
  /// @throws Error kInvalidArgument, see validate()
  explicit LlamaImpl(const LlamaConfig& config) : LlamaImpl(ModelConfig(config)) {}
  /// The same for MistralConfig, Qwen2Config and Qwen3Config.
  explicit LlamaImpl(const ModelConfig& family);

  const LlamaConfig& config() const { return config_; }
  ModelConfig model_config() const override { return family_; }

 protected:
  at::Tensor features(const at::Tensor& tokens, const Surroundings& around) override;
  at::Tensor head(const at::Tensor& features) override;

 private:
  ModelConfig family_;
  LlamaConfig config_;
  LlamaBody model{nullptr};
  Dense lm_head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace fsdp::models
