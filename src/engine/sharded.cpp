// SPDX-License-Identifier: Apache-2.0
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "engine/executor/engine.hpp"
#include "engine/executor/participate.hpp"
#include "engine/partition/layer_members.hpp"
#include "engine/partition/partition.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp {

// --- units -----------------------------------------------------------------------------------

Units units_matching(const std::string& pattern) {
  try {
    return Units([expression = std::regex(pattern)](const Candidate& candidate) {
      return std::regex_match(candidate.name, expression);
    });
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kInvalidArgument, "[units_matching] \"", pattern,
         "\" is not a regular expression: ", error.what());
  }
}

Units units_listed(std::vector<std::string> names) {
  Units units([names](const Candidate& candidate) {
    return std::find(names.begin(), names.end(), candidate.name) != names.end();
  });
  units.required_names = std::move(names);
  return units;
}

Units units_larger_than(std::int64_t min_numel) {
  return Units([min_numel](const Candidate& candidate) { return candidate.numel >= min_numel; });
}

// --- sharding --------------------------------------------------------------------------------

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

// --- Sharded ---------------------------------------------------------------------------------

std::vector<at::Tensor> Sharded::parameters() const {
  std::vector<at::Tensor> shards;
  for (NamedShard& parameter : engine_->named_shards()) {
    shards.push_back(std::move(parameter.shard));
  }
  return shards;
}

std::vector<NamedShard> Sharded::named_parameters() const { return engine_->named_shards(); }

std::vector<NamedBuffer> Sharded::named_buffers() const { return engine_->buffers(); }

std::vector<at::Tensor> Sharded::flat_shards() const {
  std::vector<at::Tensor> shards;
  for (FlatShard& flat : engine_->flats()) {
    shards.push_back(std::move(flat.shard));
  }
  return shards;
}

std::vector<at::Tensor> Sharded::flat_grad_shards() const {
  std::vector<at::Tensor> grads;
  for (FlatShard& flat : engine_->flats()) {
    grads.push_back(std::move(flat.grad));
  }
  return grads;
}

std::vector<FlatShard> Sharded::flats() const { return engine_->flats(); }

std::shared_ptr<ShardAccess> Sharded::shard_access() const { return engine_; }

void Sharded::zero_grad() { engine_->zero_grad(); }
void Sharded::set_gradient_sync(GradientSync sync) { engine_->set_gradient_sync(sync); }
void Sharded::set_gradient_divisor(double divisor) { engine_->set_gradient_divisor(divisor); }
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
  FSDP_CHECK(std::ranges::any_of(units, is_asked), ErrorCode::kNotFound,
             "[participate] no unit is called \"", unit, "\"; sharded.units() has their names");
  return engine::participate(
      engine_, [&](const engine::Unit& of, const engine::Parameter&) { return is_asked(of); });
}

FullParameters Sharded::full_parameters(bool writeback) const { return {engine_, writeback}; }

void Sharded::reshard() { engine_->reshard(); }

std::vector<UnitInfo> Sharded::units() const {
  std::vector<UnitInfo> infos;
  for (const engine::Unit& unit : engine_->units()) {
    infos.push_back({.name = unit.name,
                     .strategy = unit.placement.strategy,
                     .numel = unit.layout->total_numel(),
                     .padded_numel = unit.layout->padded_numel(),
                     .shard_numel = unit.shard_numel(),
                     .itemsize = unit.itemsize(),
                     .gathered_itemsize = engine::Unit::itemsize_of(unit.param_dtype),
                     .parameters = unit.layout->parameters(),
                     .is_unsharded = engine_->is_unsharded(static_cast<int>(infos.size()))});
  }
  return infos;
}

std::int64_t Sharded::unsharded_numel() const {
  std::int64_t numel = 0;
  for (const UnitInfo& unit : units()) {
    numel += unit.is_unsharded ? unit.numel : 0;
  }
  return numel;
}

Counters Sharded::counters() const { return engine_->counters(); }
void Sharded::reset_counters() { engine_->reset_counters(); }
memory::Bytes Sharded::promise() const { return engine_->promise(); }
const memory::Ledger& Sharded::ledger() const { return engine_->ledger(); }
memory::Ledger& Sharded::ledger() { return engine_->ledger(); }
World Sharded::world() const { return engine_->world(); }
bool Sharded::is_sharded(const at::Tensor& tensor) const { return engine_->owns(tensor); }

// --- FullParameters --------------------------------------------------------------------------

FullParameters::FullParameters(std::shared_ptr<engine::Engine> engine, bool writeback)
    : engine_(std::move(engine)), writeback_(writeback), scope_(engine_->begin_full(writeback_)) {}

FullParameters::FullParameters(FullParameters&&) noexcept = default;

FullParameters::~FullParameters() {
  if (engine_ != nullptr) {
    engine_->end_full(scope_);
  }
}

}  // namespace fsdp
