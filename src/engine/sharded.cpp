// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/sharded.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "base/near_names.hpp"
#include "engine/executor/engine.hpp"
#include "engine/executor/participate.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp {

std::vector<at::Tensor> Sharded::parameters() const {
  std::vector<at::Tensor> shards;
  for (NamedShard& parameter : engine_->named_shards()) {
    shards.push_back(std::move(parameter.shard));
  }
  return shards;
}

std::vector<NamedShard> Sharded::named_parameters() const { return engine_->named_shards(); }

std::vector<ParameterGroup> Sharded::param_groups(const GroupRule& rule) const {
  FSDP_CHECK(rule.groups >= 1 && rule.group_of, ErrorCode::kInvalidArgument,
             "[param_groups] the rule has ", rule.groups, " groups",
             rule.group_of ? "" : " and no function", ": it needs one of each at least");
  std::vector<ParameterGroup> groups(static_cast<std::size_t>(rule.groups));
  for (const NamedShard& parameter : named_parameters()) {
    const int group = rule.group_of(parameter);
    FSDP_CHECK(group >= -1 && group < rule.groups, ErrorCode::kInvalidArgument,
               "[param_groups] the rule puts \"", parameter.name, "\" into group ", group,
               ", but has groups 0 to ", rule.groups - 1, " (and -1 for none)");
    if (group >= 0) {
      groups[static_cast<std::size_t>(group)].names.push_back(parameter.name);
      groups[static_cast<std::size_t>(group)].parameters.push_back(parameter.shard);
    }
  }
  return groups;
}

std::vector<NamedBuffer> Sharded::named_buffers() const { return engine_->buffers(); }

std::shared_ptr<ShardAccess> Sharded::shard_access() const { return engine_; }

void Sharded::mark_written() { engine_->mark_written(); }
void Sharded::zero_grad() { engine_->zero_grad(); }
void Sharded::set_gradient_sync(GradientSync sync) { engine_->set_gradient_sync(sync); }
void Sharded::set_gradient_divisor(GradientDivisor divisor) {
  engine_->set_gradient_divisor(divisor.among(engine_->world().size()));
}
std::uint64_t Sharded::on_reduced(ReducedHook hook) {
  return engine_->add_reduced_hook(std::move(hook));
}
void Sharded::remove_on_reduced(std::uint64_t id) { engine_->remove_reduced_hook(id); }

at::Tensor Sharded::participate(const torch::nn::Module& module) const {
  std::vector<const c10::TensorImpl*> tensors;
  for (const auto& item : module.named_parameters()) {
    FSDP_CHECK(is_sharded(item.value()), ErrorCode::kInvalidArgument, "[participate] parameter \"",
               item.key(), "\" of the module is not one of this Sharded");
    tensors.push_back(item.value().unsafeGetTensorImpl());
  }
  FSDP_CHECK(!tensors.empty(), ErrorCode::kInvalidArgument,
             "[participate] the module has no weights: there is nothing to take part in");
  return engine::participate(engine_, [&](const engine::Unit&, const engine::Parameter& parameter) {
    return std::ranges::find(tensors, parameter.tensor.unsafeGetTensorImpl()) != tensors.end();
  });
}

at::Tensor Sharded::participate(const std::string& unit) const {
  const auto& units = engine_->units();
  const auto is_asked = [&](const engine::Unit& of) {
    return of.name == unit || (!of.module.empty() && of.module == unit);  // with all its parts
  };
  if (std::ranges::none_of(units, is_asked)) {
    std::vector<std::string> names;
    for (const engine::Unit& of : units) {
      names.push_back(of.name);
      if (!of.module.empty() && of.module != of.name) {
        names.push_back(of.module);
      }
    }
    fail(ErrorCode::kNotFound, "[participate] no unit is called \"", unit, "\"; of ", units.size(),
         " units the nearest are ", base::near_names_text(unit, names),
         ", and sharded.report().units have all names");
  }
  return engine::participate(
      engine_, [&](const engine::Unit& of, const engine::Parameter&) { return is_asked(of); });
}

FullParameters Sharded::full_parameters(bool writeback) const { return {engine_, writeback}; }

void Sharded::reshard() { engine_->reshard(); }

Report Sharded::report() const {
  Report report{.ranks = engine_->world().size(),
                .counters = engine_->counters(),
                .promise = engine_->promise(),
                .live = engine_->ledger().live(),
                .peak = engine_->ledger().peak(),
                .peak_total = engine_->ledger().peak_total()};
  for (const engine::Unit& unit : engine_->units()) {
    report.units.push_back(
        {.name = unit.name,
         .strategy = unit.placement.strategy,
         .numel = unit.layout->total_numel(),
         .padded_numel = unit.layout->padded_numel(),
         .shard_numel = unit.shard_numel(),
         .itemsize = unit.itemsize(),
         .gathered_itemsize = engine::Unit::itemsize_of(unit.param_dtype),
         .parameters = unit.layout->parameters(),
         .stays_gathered = unit.is_kept,
         .is_optional = unit.is_optional,
         .is_unsharded = engine_->is_unsharded(static_cast<int>(report.units.size()))});
    report.unsharded_numel += report.units.back().is_unsharded ? report.units.back().numel : 0;
  }
  return report;
}

void Sharded::reset_counters() { engine_->reset_counters(); }
World Sharded::world() const { return engine_->world(); }
bool Sharded::is_sharded(const at::Tensor& tensor) const { return engine_->owns(tensor); }

FullParameters::FullParameters(std::shared_ptr<engine::Engine> engine, bool writeback)
    : engine_(std::move(engine)), writeback_(writeback), scope_(engine_->begin_full(writeback_)) {}

FullParameters::FullParameters(FullParameters&&) noexcept = default;

FullParameters::~FullParameters() {
  if (engine_ != nullptr) {
    engine_->end_full(scope_);
  }
}

}  // namespace fsdp
