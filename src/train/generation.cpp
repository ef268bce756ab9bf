// SPDX-License-Identifier: Apache-2.0
#include "train/generation.hpp"

#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "base/regular_file.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/checkpoint/weights.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/deferred_init.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/generate.hpp"
#include "fsdp/models/lora.hpp"
#include "train/inference.hpp"

namespace fsdp::train {
namespace {

/// Checkpoints of a run that trains adapters hold them beside the weights, and say so.
std::shared_ptr<models::LanguageModel> make_model(const std::string& path,
                                                  const models::ModelConfig& config) {
  const archive::WeightSource source(path);
  const auto found = source.documents().find(format::kAdapterConfig);
  // No rank ever holds the whole model: weights come to be when it is sharded.
  return deferred_init([&] {
    const auto model = models::make_model(config);
    if (found != source.documents().end()) {
      models::add_adapters(*model, format::parse_adapter_config(path, found->second));
    }
    model->eval();
    return model;
  });
}

}  // namespace

models::ModelConfig config_of(const std::string& path) {
  const archive::WeightSource source(path);
  FSDP_CHECK(!source.config().empty(), ErrorCode::kNotFound, "'", path,
             "' has no config.json beside its weights, which says what model they are of");
  const auto config =
      models::read_config((std::filesystem::path(path) / "config.json").string(), source.config());
  // Before anything is built of it: 16 million layers would take gigabytes without a weight.
  std::int64_t held = 0;
  for (const archive::Tensor& tensor : source.tensors()) {
    held += archive::numel(tensor.shape);
  }
  const std::int64_t described = models::parameter_count(config);
  FSDP_CHECK(described <= held, ErrorCode::kMismatch, "'", path, "': its config.json describes ",
             described, " parameters (", models::sizes(config).layers, " layers of width ",
             models::sizes(config).width, "), its weights have ", held,
             ": the one does not belong to the other", archive::hint_for_part(path));
  return config;
}

std::string weight_type_of(const std::string& path) {
  std::set<std::string> types;
  const archive::WeightSource source(path);
  for (const archive::Tensor& tensor : source.tensors()) {
    if (tensor.dtype == "BF16" || tensor.dtype.starts_with("F")) {
      types.insert(tensor.dtype);
    }
  }
  return types == std::set<std::string>{"BF16"}  ? "bfloat16"
         : types == std::set<std::string>{"F16"} ? "float16"
                                                 : "float32";
}

format::LoRAConfig adapter_of(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / format::kAdapterConfig).string();
  base::need_regular(path);
  std::ifstream file(path, std::ios::binary);
  FSDP_CHECK(file, ErrorCode::kNotFound, "'", path, "' cannot be opened: no directory of adapters");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return format::parse_adapter_config(path, text);
}

detail::Loaded detail::load_for_inference(const std::string& path, const std::string& adapter,
                                          int prefetch, const World& world) {
  const models::ModelConfig shape = config_of(path);
  const auto model = make_model(path, shape);
  Sharded sharded = fully_shard(model, world,
                                {.device = world.device(),
                                 .units = units_of<models::DecoderBlock>(),
                                 .memory = {.prefetch = prefetch, .moments = 0},
                                 .initial_weights = InitialWeights::kBroadcast,
                                 .debug = {.print_promise = false}});
  checkpoint::load_weights(
      path, sharded,
      {.name_of = [&](const std::string& stored) { return models::parameter_of(shape, stored); },
       .adapter = adapter});
  return {.model = model, .sharded = sharded};
}

std::vector<std::int64_t> generate(const GenerationConfig& config, const World& world,
                                   const std::function<void(std::int64_t)>& on_token) {
  const auto [model, sharded] =
      detail::load_for_inference(config.path, config.adapter, config.prefetch, world);
  const auto agree = [&](std::int64_t drawn) {
    const std::int64_t token = comm::value_of_first(world.job(), drawn, "token");
    if (on_token && world.rank() == 0) {
      on_token(token);
    }
    return token;
  };
  return models::generate(*model, config.prompt,
                          {.tokens = config.tokens,
                           .temperature = config.temperature,
                           .top_k = config.top_k,
                           .top_p = config.top_p,
                           .seed = config.seed,
                           .ends = config.ends,
                           .use_cache = config.use_cache,
                           .agree = agree,
                           .device = world.device()});
}

}  // namespace fsdp::train
