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
              const World& world, std::function<void(const trace::Event&)> observer) {
  if (config.recompute) {
    model->set_block_runner(
        [](const auto& block, at::Tensor x) { return recompute(block, std::move(x)); });
  }
  Options options{.units = units_of<models::DecoderBlock>(), .debug = {.print_promise = false}};
  options.debug.observer = std::move(observer);
  options.device = world.device();
  options.strategy = config.strategy;
  if (config.has_mesh()) {
    options.mesh.emplace(world, world.size() / config.shard, config.shard);
  }
  options.memory.prefetch = config.prefetch;
  if (config.keep_root) {
    options.rules.push_back({.units = root_unit(), .keep_gathered = true});
  }
  if (config.offload) {
    options.memory.offload.emplace();
  }
  options.precision.param = scalar_type(config.param_dtype);
  options.precision.reduce = scalar_type(config.reduce_dtype);
  return fully_shard(model, world, std::move(options));
}

}  // namespace fsdp::train::detail
