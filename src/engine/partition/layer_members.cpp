// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/layer_members.hpp"

#include <torch/torch.h>

namespace fsdp::engine {

namespace {

template <class Impl>
bool weight_and_bias(torch::nn::Module& module, std::vector<Member>& members) {
  auto* layer = dynamic_cast<Impl*>(&module);
  if (layer == nullptr) {
    return false;
  }
  members.push_back({"weight", &layer->weight});
  if constexpr (requires { layer->bias; }) {
    members.push_back({"bias", &layer->bias});
  }
  return true;
}

template <class... Impls>
bool any_of(torch::nn::Module& module, std::vector<Member>& members) {
  return (weight_and_bias<Impls>(module, members) || ...);
}

}  // namespace

std::vector<Member> layer_members(torch::nn::Module& module) {
  namespace nn = torch::nn;
  std::vector<Member> members;
  if (any_of<nn::LinearImpl, nn::BilinearImpl, nn::EmbeddingImpl, nn::EmbeddingBagImpl,
             nn::Conv1dImpl, nn::Conv2dImpl, nn::Conv3dImpl, nn::ConvTranspose1dImpl,
             nn::ConvTranspose2dImpl, nn::ConvTranspose3dImpl, nn::LayerNormImpl, nn::GroupNormImpl,
             nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl,
             nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl, nn::PReLUImpl>(module, members)) {
    return members;
  }
  if (auto* attention = dynamic_cast<nn::MultiheadAttentionImpl*>(&module)) {
    members = {{"in_proj_weight", &attention->in_proj_weight},
               {"in_proj_bias", &attention->in_proj_bias},
               {"q_proj_weight", &attention->q_proj_weight},
               {"k_proj_weight", &attention->k_proj_weight},
               {"v_proj_weight", &attention->v_proj_weight},
               {"bias_k", &attention->bias_k},
               {"bias_v", &attention->bias_v}};
  }
  return members;
}

bool writes_weights_in_forward(const torch::nn::Module& module) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    return embedding->options.max_norm().has_value();
  }
  if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    return bag->options.max_norm().has_value();
  }
  return false;
}

}  // namespace fsdp::engine
