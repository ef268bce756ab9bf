// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/llama.hpp"

#include <torch/torch.h>

#include "models/attention.hpp"
#include "models/llama/llama_family.hpp"

namespace fsdp::models {
namespace {

constexpr double kInitialDeviation = 0.02;

/// The second half of the features, negated, before the first: a quarter turn of each pair (i,
/// i + width / 2), which is how Hugging Face's Llama files pair features.
at::Tensor quarter_turn(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return torch::cat({-halves[1], halves[0]}, -1);
}

at::Tensor rotate(const at::Tensor& x, const Rotation& rotation) {
  return x * rotation.cos + quarter_turn(x) * rotation.sin;
}

Dense dense(std::int64_t in, std::int64_t out, bool has_bias) {
  return Dense(in, out, has_bias, kInitialDeviation);
}

}  // namespace

RMSNormImpl::RMSNormImpl(std::int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({width}));
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return torch::rms_norm(x, {x.size(-1)}, weight, eps_);
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_width_(config.effective_head_width()),
      dropout_(config.dropout) {
  const std::int64_t queries = heads_ * head_width_, keys = kv_heads_ * head_width_;
  const bool output_bias = config.attention_bias;
  const bool bias = output_bias || config.input_bias;
  q_proj = register_module("q_proj", dense(config.width, queries, bias));
  k_proj = register_module("k_proj", dense(config.width, keys, bias));
  v_proj = register_module("v_proj", dense(config.width, keys, bias));
  o_proj = register_module("o_proj", dense(queries, config.width, output_bias));
  if (config.head_norms) {
    q_norm = register_module("q_norm", RMSNorm(head_width_, config.norm_eps));
    k_norm = register_module("k_norm", RMSNorm(head_width_, config.norm_eps));
  }
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x, const Rotation& rotation,
                                       const detail::BlockCache& cache) {
  const std::int64_t batch = x.size(0), time = x.size(1);
  const auto heads = [&](const at::Tensor& y, std::int64_t count) {
    return y.view({batch, time, count, head_width_}).transpose(1, 2);
  };
  const auto turned = [&](const at::Tensor& y, std::int64_t count, RMSNorm& norm) {
    const at::Tensor own = heads(y, count);
    return rotate(norm.is_empty() ? own : norm->forward(own), rotation);
  };
  const at::Tensor queries = turned(q_proj->forward(x), heads_, q_norm);
  const at::Tensor keys = turned(k_proj->forward(x), kv_heads_, k_norm);
  const at::Tensor values = heads(v_proj->forward(x), kv_heads_);
  return o_proj->forward(
      detail::attend(queries, keys, values, is_training() ? dropout_ : 0.0, cache));
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config) {
  gate_proj = register_module("gate_proj", dense(config.width, config.inner, config.mlp_bias));
  up_proj = register_module("up_proj", dense(config.width, config.inner, config.mlp_bias));
  down_proj = register_module("down_proj", dense(config.inner, config.width, config.mlp_bias));
}

at::Tensor LlamaMLPImpl::forward(const at::Tensor& x) {
  return down_proj->forward(torch::silu(gate_proj->forward(x)) * up_proj->forward(x));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config) {
  self_attn = register_module("self_attn", LlamaAttention(config));
  mlp = register_module("mlp", LlamaMLP(config));
  input_layernorm = register_module("input_layernorm", RMSNorm(config.width, config.norm_eps));
  post_attention_layernorm =
      register_module("post_attention_layernorm", RMSNorm(config.width, config.norm_eps));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const Rotation& rotation,
                                   const detail::BlockCache& cache) {
  const at::Tensor attended = x + self_attn->forward(input_layernorm->forward(x), rotation, cache);
  return attended + mlp->forward(post_attention_layernorm->forward(attended));
}

LlamaBodyImpl::LlamaBodyImpl(const LlamaConfig& config) : frequencies_(rope_frequencies(config)) {
  {
    torch::NoGradGuard no_grad;
    embed_tokens = register_module(
        "embed_tokens", torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab, config.width)
                                                 ._weight(torch::empty({config.vocab, config.width})
                                                              .normal_(0, kInitialDeviation))));
  }
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(LlamaBlock(config));
    windows_.push_back(config.window_of(i));
  }
  norm = register_module("norm", RMSNorm(config.width, config.norm_eps));
}

/// Angles are products in float, as in the programs that the weights were trained with: at position
/// 8,000 the rounding is half a thousandth of a radian.
Rotation LlamaBodyImpl::rotation(const at::Tensor& positions, const at::Tensor& like) const {
  const auto options = like.options().dtype(torch::kFloat);
  const at::Tensor frequencies = torch::tensor(frequencies_, options);
  const at::Tensor half = positions.to(torch::kFloat).unsqueeze(-1) * frequencies;
  at::Tensor angles = torch::cat({half, half}, -1);
  if (positions.dim() == 2) {
    angles = angles.unsqueeze(1);  // all heads alike
  }
  return {.cos = angles.cos().to(like.scalar_type()), .sin = angles.sin().to(like.scalar_type())};
}

at::Tensor LlamaBodyImpl::forward(const at::Tensor& tokens, const at::Tensor& positions,
                                  const Surroundings& around, const BlockRunner& run) {
  at::Tensor x = embed_tokens->forward(tokens);
  const Rotation turn = rotation(positions, x.detach());
  for (std::size_t i = 0; i < layers->size(); ++i) {
    const auto block = [this, turn, around, i](const at::Tensor& in) {
      return layers->at<LlamaBlockImpl>(i).forward(in, turn,
                                                   {.of_model = around.cache,
                                                    .block = i,
                                                    .window = windows_[i],
                                                    .documents = around.documents});
    };
    x = run && around.cache == nullptr ? run(block, x) : block(x);
  }
  return norm->forward(x);
}

LlamaImpl::LlamaImpl(const ModelConfig& family)
    : family_(family), config_(detail::llama_part(family)) {
  validate(config_);
  model = register_module("model", LlamaBody(config_));
  if (!config_.tied) {
    lm_head = register_module("lm_head", dense(config_.width, config_.vocab, false));
  }
}

at::Tensor LlamaImpl::features(const at::Tensor& tokens, const Surroundings& around) {
  return model->forward(tokens, positions(tokens, around), around, block_runner());
}

at::Tensor LlamaImpl::head(const at::Tensor& features) {
  return config_.tied ? torch::linear(features, model->embed_tokens->weight)
                      : lm_head->forward(features);
}

std::shared_ptr<LanguageModel> detail::make_llama(const ModelConfig& config) {
  return std::make_shared<LlamaImpl>(config);
}

}  // namespace fsdp::models
