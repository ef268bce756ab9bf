// SPDX-License-Identifier: Apache-2.0
#include "train/summary.hpp"

#include <sstream>

#include "base/text.hpp"
#include "fsdp/archive/index.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/memory/ledger.hpp"
#include "fsdp/models/lora.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "train/progress.hpp"

namespace fsdp::train::detail {

namespace {

std::int64_t adapter_elements(const Sharded& sharded) {
  std::int64_t sum = 0;
  for (const NamedShard& parameter : sharded.named_parameters()) {
    sum += models::is_adapter(parameter.name) ? archive::numel(parameter.sizes) : 0;
  }
  return sum;
}

}  // namespace

std::string summary(const TrainConfig& config, const Dataset& data, const Sharded& sharded) {
  const World world = sharded.world();
  const models::ModelSizes model = models::sizes(config.model);
  const auto units = sharded.report().units;
  const auto promise = sharded.report().promise;
  const std::int64_t batch = config.effective_batch(world.size());
  const std::int64_t micro_steps = config.global_batch / (world.size() * batch);

  std::ostringstream text;
  const char* heading = "data     ";
  for (const std::string& line : data.description()) {
    text << heading << line << "\n";
    heading = "         ";
  }
  if (!config.tokenizer.empty()) {
    const auto tokenizer = tokens::load(config.tokenizer);
    text << "tokens   " << tokenizer->name() << ", " << format_count(tokenizer->vocab_size())
         << " ids\n";
  }
  text << "model    " << format_count(models::parameter_count(config.model))
       << " parameters: " << models::model_type(config.model) << ", " << model.layers
       << " layers, width " << model.width << ", " << model.heads << " heads, vocabulary "
       << model.vocab << ", " << (model.tied ? "tied" : "untied") << " head, "
       << to_string(config.dtype) << "\n";
  if (!config.init.empty()) {
    text << "begins   with " << config.init
         << (config.adapter.empty() ? "" : " and the adapters in " + config.adapter) << "\n";
  }
  if (config.lora.rank > 0) {
    text << "adapters " << format_count(adapter_elements(sharded)) << " parameters learn: rank "
         << config.lora.rank << ", alpha " << config.lora.alpha << ", beside "
         << base::list_text(config.lora.targets) << "\n";
  }
  text << "ranks    " << world.size() << " over " << world.transport().traits().name
       << (world.device().is_cpu() ? "" : " on " + c10::DeviceTypeName(world.device().type(), true))
       << ", " << units.size() << (units.size() == 1 ? " unit" : " units") << ", prefetch "
       << config.prefetch;
  if (config.strategy != Strategy::kFullShard) {
    text << ", " << to_string(config.strategy);
    if (config.has_mesh()) {
      text << " on replicate " << world.size() / config.shard << " x shard " << config.shard;
    }
  }
  if (units.front().gathered_itemsize < units.front().itemsize) {
    text << ", weights travel at " << 8 * units.front().gathered_itemsize << " bits";
  }
  text << (config.recompute ? ", activations are computed again" : "") << "\n";
  if (config.offload) {
    text << "offload  "
         << (world.device().is_cpu()
                 ? "changes nothing: the model is on the CPU, where host and device are one"
                 : "shards, gradients and optimizer state are in the host's memory")
         << "\n";
  }
  text << "batch    " << config.global_batch << " x " << config.sequence
       << " tokens per step: " << world.size() << (world.size() == 1 ? " rank x " : " ranks x ")
       << micro_steps << (micro_steps == 1 ? " micro-step x " : " micro-steps x ") << batch
       << " sequences\n";
  text << "train    " << format_count(config.steps) << " steps, " << to_string(config.optimizer)
       << ", lr " << config.lr;
  if (config.schedule != ScheduleKind::kConstant) {
    text << " to " << config.effective_min_lr();
  }
  if (config.schedule != ScheduleKind::kCosine) {
    text << " (" << to_string(config.schedule) << ")";
  }
  text << ", warm-up " << config.effective_warmup() << ", clip " << config.clip << ", seed "
       << config.seed << "\n";
  text << "promise  " << memory::format_bytes(promise.total())
       << " a rank for weights, gradients, optimizer and buffers:\n";
  std::istringstream table(memory::format(promise));
  for (std::string line; std::getline(table, line);) {
    text << "         " << line << "\n";
  }
  return text.str();
}

}  // namespace fsdp::train::detail
