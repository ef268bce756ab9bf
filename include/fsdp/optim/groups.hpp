// SPDX-License-Identifier: Apache-2.0
/// Parameters by name: which of them an optimizer treats alike. A pattern is a parameter's name, in
/// which each `*` stands for any characters, dots included: "*.bias", "blocks.3.*", "*". A tied
/// weight goes by each of its names.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"

namespace torch::optim {
class OptimizerOptions;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace fsdp::optim {

/// Whether the whole of `name` fits `pattern`.
bool matches(const std::string& pattern, const std::string& name);

/// Distributes parameters over groups, each given by its patterns. A parameter belongs to the first
/// group that has a pattern for it, so that a last group {"*"} holds the rest. Returns the group of
/// each of sharded.named_parameters(), -1 for a parameter of none.
/// @throws Error kNotFound for a pattern that fits no parameter, which is a slip of the pen
std::vector<int> assign_groups(const Sharded& sharded,
                               const std::vector<std::vector<std::string>>& patterns);

/// The shards whose parameters fit any of `patterns`, in the module's order.
/// @throws Error kNotFound for a pattern that fits no parameter
std::vector<at::Tensor> parameters_matching(const Sharded& sharded,
                                            const std::vector<std::string>& patterns);

/// The same as a group of one of LibTorch's optimizers:
///
///     std::vector<torch::optim::OptimizerParamGroup> groups;
///     groups.push_back(param_group(sharded, {"*.weight"}, std::make_unique<AdamWOptions>(...)));
///     groups.push_back(param_group(sharded, {"*.bias"}, std::make_unique<AdamWOptions>(...)));
///     torch::optim::AdamW optimizer(std::move(groups));
///
/// LibTorch fills options that have their type's default value from the optimizer's own ones, so
/// leave those alone. Any optimizer that treats each element by itself is right on shards; one that
/// does not (LBFGS, a norm of a weight) throws, see docs/how-to/choose-an-optimizer.md.
/// @throws Error kNotFound for a pattern that fits no parameter
torch::optim::OptimizerParamGroup param_group(
    const Sharded& sharded, const std::vector<std::string>& patterns,
    std::unique_ptr<torch::optim::OptimizerOptions> options);

}  // namespace fsdp::optim
