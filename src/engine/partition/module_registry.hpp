// SPDX-License-Identifier: Apache-2.0
/// A module's registries themselves. What torch::nn::Module offers are copies, made anew at each
/// call, and no way to replace an entry.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace fsdp::engine {

using TensorRegistry = torch::OrderedDict<std::string, at::Tensor>;
using ModuleRegistry = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

TensorRegistry& parameters_of(torch::nn::Module& module);
const TensorRegistry& buffers_of(const torch::nn::Module& module);
const ModuleRegistry& children_of(const torch::nn::Module& module);

}  // namespace fsdp::engine
