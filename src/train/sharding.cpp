// SPDX-License-Identifier: Apache-2.0
#include "train/sharding.hpp"

#include <optional>
#include <utility>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/engine/recompute.hpp"

namespace fsdp::train::detail {
namespace {

std::optional<at::ScalarType> scalar_type(TravelType type) {
  switch (type) {
    case TravelType::kAsWeights: return std::nullopt;
    case TravelType::kBFloat16: return at::kBFloat16;
    case TravelType::kFloat16: return at::kHalf;
  }
  return std::nullopt;
}

}  // namespace

Sharded shard(const std::shared_ptr<models::LanguageModel>& model, const TrainConfig& config,
              const World& world) {
  if (config.checkpoint_activations) {
    model->set_block_runner([](const auto& block, at::Tensor x) {
      return checkpoint_activations(block, std::move(x));
    });
  }
  Options options{.units = units_of<models::DecoderBlock>(), .print_promise = false};
  options.strategy = config.strategy;
  if (config.has_mesh()) {
    options.mesh.emplace(world, world.size() / config.shard, config.shard);
  }
  options.prefetch = config.prefetch;
  options.keep_root = config.keep_root;
  if (config.offload) {
    options.offload.emplace();
  }
  options.precision.param = scalar_type(config.param_dtype);
  options.precision.reduce = scalar_type(config.reduce_dtype);
  return fully_shard(model, world, std::move(options));
}

}  // namespace fsdp::train::detail
