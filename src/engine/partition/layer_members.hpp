// SPDX-License-Identifier: Apache-2.0
/// In LibTorch a layer's weight has two handles: the member (`layer->weight`), which forward uses,
/// and the registry's entry, which parameters() returns. Assigning the member leaves the registry
/// behind. This table knows the members of the torch::nn layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp::engine {

struct Member {
  std::string name;
  at::Tensor* tensor;
};

/// The parameter members of `module` if it is one of torch::nn's layers, else none.
std::vector<Member> layer_members(torch::nn::Module& module);

/// Whether `module` is an Embedding or EmbeddingBag that renormalises its weights in forward.
bool writes_weights_in_forward(const torch::nn::Module& module);

}  // namespace fsdp::engine
