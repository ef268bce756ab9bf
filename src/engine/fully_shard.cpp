// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/fully_shard.hpp"

#include <torch/script.h>
#include <torch/torch.h>

#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/partition/layer_members.hpp"
#include "engine/partition/module_registry.hpp"
#include "engine/partition/partition.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp {

Sharded fully_shard(const std::shared_ptr<torch::nn::Module>& module, const World& world,
                    Options options) {
  FSDP_CHECK(module != nullptr, ErrorCode::kInvalidArgument, "[fully_shard] the module is null");
  engine::Partition partition = engine::partition(*module, options);
  return Sharded(engine::Engine::create(std::move(partition), world, std::move(options)));
}

Sharded fully_shard(const torch::jit::Module& module, const World& world, Options options) {
  engine::Partition partition = engine::partition(module, options);
  return Sharded(engine::Engine::create(std::move(partition), world, std::move(options)));
}

Sharded fully_shard(const TensorTree& tree, const World& world, Options options) {
  engine::Partition partition = engine::partition(tree, options);
  return Sharded(engine::Engine::create(std::move(partition), world, std::move(options)));
}

void tie_weights(torch::nn::Module& from, const std::string& from_name, torch::nn::Module& to,
                 const std::string& to_name) {
  const auto source_parameters = from.named_parameters(/*recurse=*/false);
  const at::Tensor* source = source_parameters.find(from_name);
  FSDP_CHECK(source != nullptr, ErrorCode::kNotFound,
             "[tie_weights] the first module has no parameter \"", from_name, "\"");
  const auto target_parameters = to.named_parameters(/*recurse=*/false);
  const at::Tensor* target = target_parameters.find(to_name);
  FSDP_CHECK(target != nullptr, ErrorCode::kNotFound,
             "[tie_weights] the second module has no parameter \"", to_name, "\"");
  FSDP_CHECK(source->sizes() == target->sizes(), ErrorCode::kInvalidArgument, "[tie_weights] \"",
             from_name, "\" has shape ", source->sizes(), " and \"", to_name, "\" has shape ",
             target->sizes(), ", tied weights have one shape");
  for (const auto& [name, tensor] : {std::pair(&from_name, source), std::pair(&to_name, target)}) {
    FSDP_CHECK(
        !tensor->key_set().has(engine::kTouchKey) || engine::was_deferred(*tensor),
        ErrorCode::kInvalidArgument, "[tie_weights] \"", *name,
        "\" is sharded already, and its shards would stay apart from the other's: tie weights "
        "before fully_shard()");
  }
  for (const engine::Member& member : engine::layer_members(to)) {
    if (member.name == to_name) {
      *member.tensor = *source;
    }
  }
  engine::parameters_of(to)[to_name] = *source;
}

}  // namespace fsdp
