// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/fully_shard.hpp"

#include <torch/script.h>
#include <torch/torch.h>

#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/partition/layer_members.hpp"
#include "engine/partition/partition.hpp"
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

namespace {
/// Module keeps its registry protected and offers no way to replace an entry.
struct RegistryAccess : torch::nn::Module {
  static auto& parameters(torch::nn::Module& module) {
    return module.*(&RegistryAccess::parameters_);
  }
};
}  // namespace

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
  for (const engine::Member& member : engine::layer_members(to)) {
    if (member.name == to_name) {
      *member.tensor = *source;
    }
  }
  RegistryAccess::parameters(to)[to_name] = *source;
}

}  // namespace fsdp
