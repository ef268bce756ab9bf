// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_plan.hpp"

#include "archive/commit.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::checkpoint::detail {

using archive::Section;

namespace {

/// Random numbers: each rank's stream is a tensor that this rank alone holds.
void add_streams(std::vector<Item>& items, const at::Tensor& rng, const World& world) {
  for (int rank = 0; rng.defined() && rank < world.size(); ++rank) {
    const at::Tensor values = rank == world.rank() ? rng : rng.narrow(0, 0, 0);
    items.push_back({.section = Section::kState,
                     .name = "rng.cpu." + std::to_string(rank),
                     .shape = {rng.numel()},
                     .values = values,
                     .answered_numel = values.numel()});
  }
}

void add_section(SavePlan& plan, Section section, std::int64_t max_file_bytes) {
  std::vector<format::TensorEntry> entries;
  for (const Item& item : plan.items) {
    if (item.section == section) {
      entries.push_back({item.name, dtype_name(item.values.scalar_type(), item.name), item.shape});
    }
  }
  const archive::FilePlan files =
      archive::plan_files(section, entries, {{"format", "pt"}}, max_file_bytes);
  plan.files.insert(plan.files.end(), files.files.begin(), files.files.end());
  archive::add_plan(plan.index, files);
  const std::string map = archive::weight_map_json(files);
  if (section == Section::kModel && !map.empty()) {
    plan.documents["model.safetensors.index.json"] = map;
  }
}

}  // namespace

SavePlan make_save_plan(const Sharded& sharded, const OptimizerState* optimizer, std::int64_t step,
                        const RunState& state, std::int64_t max_file_bytes) {
  FSDP_CHECK(!state.values.contains("optimizer"), ErrorCode::kInvalidArgument,
             "the section \"optimizer\" of RunState::values is taken");
  SavePlan plan{.items = items_of(sharded, optimizer),
                .files = {},
                .index = {.step = step, .values = state.values},
                .documents = state.documents};
  add_streams(plan.items, state.rng, sharded.world());
  for (const Section section : {Section::kModel, Section::kOptimizer, Section::kState}) {
    add_section(plan, section, max_file_bytes);
  }
  for (const NamedShard& parameter : sharded.named_parameters()) {
    for (const std::string& alias : parameter.aliases) {
      plan.index.aliases[alias] = parameter.name;
    }
  }
  if (optimizer != nullptr) {
    plan.index.steps = optimizer->steps();
    plan.index.values["optimizer"]["kind"] = optimizer->kind();
    for (auto& [group, options] : optimizer->options()) {
      plan.index.values["optimizer.group." + group] = options;
    }
  }
  if (state.rng.defined()) {
    plan.index.values["rng"]["streams"] = std::int64_t{sharded.world().size()};
  }
  return plan;
}

}  // namespace fsdp::checkpoint::detail
