// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt.hpp"

#include <torch/torch.h>

#include <cmath>

#include "models/attention.hpp"
#include "models/gpt/gpt_family.hpp"

namespace fsdp::models {
namespace {

constexpr double kInitialDeviation = 0.02;

/// Projections that write into the residual stream start smaller: 2 x layers of them add up.
double residual_deviation(const GPTConfig& config) {
  return kInitialDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
}

torch::nn::Embedding make_embedding(std::int64_t count, std::int64_t width) {
  torch::NoGradGuard no_grad;
  return torch::nn::Embedding(
      torch::nn::EmbeddingOptions(count, width)
          ._weight(torch::empty({count, width}).normal_(0, kInitialDeviation)));
}

torch::nn::LayerNorm make_norm(const GPTConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width}).eps(config.norm_eps));
}

}  // namespace

AttentionImpl::AttentionImpl(const GPTConfig& config)
    : heads_(config.heads), dropout_(config.dropout) {
  c_attn = register_module("c_attn", Projection(config.width, 3 * config.width, kInitialDeviation));
  c_proj =
      register_module("c_proj", Projection(config.width, config.width, residual_deviation(config)));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const detail::BlockCache& cache) {
  const std::int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
  const auto qkv = c_attn->forward(x).view({batch, time, 3, heads_, width / heads_}).unbind(2);
  return c_proj->forward(detail::attend(qkv[0].transpose(1, 2), qkv[1].transpose(1, 2),
                                        qkv[2].transpose(1, 2), is_training() ? dropout_ : 0.0,
                                        cache));
}

MLPImpl::MLPImpl(const GPTConfig& config) {
  const std::int64_t inner = config.effective_inner();
  c_fc = register_module("c_fc", Projection(config.width, inner, kInitialDeviation));
  c_proj = register_module("c_proj", Projection(inner, config.width, residual_deviation(config)));
}

at::Tensor MLPImpl::forward(const at::Tensor& x) {
  return c_proj->forward(torch::gelu(c_fc->forward(x), "tanh"));
}

BlockImpl::BlockImpl(const GPTConfig& config) : dropout_(config.dropout) {
  ln_1 = register_module("ln_1", make_norm(config));
  attn = register_module("attn", Attention(config));
  ln_2 = register_module("ln_2", make_norm(config));
  mlp = register_module("mlp", MLP(config));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, const detail::BlockCache& cache) {
  const auto drop = [&](const at::Tensor& y) {
    return dropout_ > 0 ? torch::dropout(y, dropout_, is_training()) : y;
  };
  const auto attended = x + drop(attn->forward(ln_1->forward(x), cache));
  return attended + drop(mlp->forward(ln_2->forward(attended)));
}

GPTImpl::GPTImpl(const GPTConfig& config) : config_(config) {
  validate(config);
  wte = register_module("wte", make_embedding(config.vocab, config.width));
  wpe = register_module("wpe", make_embedding(config.context, config.width));
  h = register_module("h", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    h->push_back(Block(config));
  }
  ln_f = register_module("ln_f", make_norm(config));
  if (!config.tied) {
    lm_head = register_module(
        "lm_head",
        torch::nn::Linear(torch::nn::LinearOptions(config.width, config.vocab).bias(false)));
    torch::NoGradGuard no_grad;
    lm_head->weight.normal_(0, kInitialDeviation);
  }
}

at::Tensor GPTImpl::features(const at::Tensor& tokens, const Surroundings& around) {
  auto x = wte->forward(tokens) + wpe->forward(positions(tokens, around));
  if (config_.dropout > 0) {
    x = torch::dropout(x, config_.dropout, is_training());
  }
  const BlockRunner& run = block_runner();
  for (std::size_t i = 0; i < h->size(); ++i) {
    const auto block = [this, around, i](const at::Tensor& in) {
      return h->at<BlockImpl>(i).forward(
          in, {.of_model = around.cache, .block = i, .documents = around.documents});
    };
    x = run && around.cache == nullptr ? run(block, x) : block(x);
  }
  return ln_f->forward(x);
}

at::Tensor GPTImpl::head(const at::Tensor& features) {
  return config_.tied ? torch::linear(features, wte->weight) : lm_head->forward(features);
}

std::shared_ptr<LanguageModel> detail::make_gpt(const ModelConfig& config) {
  return std::make_shared<GPTImpl>(std::get<GPTConfig>(config));
}

}  // namespace fsdp::models
