// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/setup.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "engine/partition/manifest.hpp"
#include "engine/unit/home.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Memory order is kept where a permutation of strides describes it (transposed, channels last).
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.strides().vec()
                                               : tensor.contiguous().strides().vec();
}

/// Which part of a parameter this rank owns, and for what of that it answers.
void set_pieces(Unit& unit) {
  const SliceRun& own = unit.placement.own;
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    Parameter& parameter = unit.parameters[static_cast<std::size_t>(i)];
    parameter.piece = unit.layout->piece(i, own.first, own.count);
    parameter.answered = unit.layout->piece(i, unit.placement.answers_for);
    // From the start of that slice to the start of the parameter's shard.
    parameter.answered.shard_offset =
        parameter.answered.numel == 0
            ? 0
            : parameter.answered.shard_offset - parameter.piece.shard_offset +
                  (unit.placement.answers_for - own.first) * unit.layout->shard_numel();
  }
}

}  // namespace

Setup::Setup(Partition partition, const World& world, const Options& options, Copier* copier)
    : partition_(std::move(partition)), options_(options), copier_(copier), link_(world.link()) {}

ModuleLayout Setup::layout() && {
  std::vector<Unit>& units = partition_.units;
  check_options();
  set_home(units, options_, copier_);
  const Groups mesh = groups_of_mesh();
  for (Unit& unit : units) {
    place(unit, mesh);
  }
  const c10::Device device = units.front().device;
  const std::optional<std::string> refusal = link_.transport->refuses(device);
  agree_on_manifest(*link_.job, units, options_, !refusal.has_value());
  FSDP_CHECK(!refusal.has_value(), ErrorCode::kUnsupported, "[fully_shard] the module is on ",
             device, ": ", *refusal);
  if (options_.initial_weights == InitialWeights::kCheckEqual) {
    check_equal_weights(*link_.job, units);
  }
  const bool aliased = is_aliased();
  for (Unit& unit : units) {
    if (aliased) {
      unit.placement.secondary = nullptr;  // nothing moves: there is nothing to save
    }
  }
  const schedule::Config config = schedule_config();
  return {.units = std::move(units),
          .bundles = std::move(partition_.bundles),
          .schedule = config,
          .is_aliased = aliased};
}

void Setup::check_options() const {
  const MemoryOptions& memory = options_.memory;
  FSDP_CHECK(memory.prefetch >= 0, ErrorCode::kInvalidArgument, "[fully_shard] prefetch is ",
             memory.prefetch, ", must be 0 or more");
  FSDP_CHECK(memory.align_bytes >= 0 && memory.extra_slots >= 0 && options_.replicate_below >= 0,
             ErrorCode::kInvalidArgument, "[fully_shard] align_bytes is ", memory.align_bytes,
             ", extra_slots ", memory.extra_slots, " and replicate_below ",
             options_.replicate_below, ", none may be negative");
  const double divisor = options_.gradient_divisor.among(link_.size());
  FSDP_CHECK(std::isfinite(divisor) && divisor > 0, ErrorCode::kInvalidArgument,
             "[fully_shard] gradient_divisor is ", divisor, ", must be positive and finite");
}

Groups Setup::groups_of_mesh() const {
  // As asked for, not as units turn out: which parameters replicate_below takes is no reason to
  // leave the mesh out.
  std::vector<Strategy> asked = {options_.strategy};
  for (const UnitRule& rule : options_.rules) {
    asked.push_back(rule.strategy.value_or(options_.strategy));
  }
  const auto strategy = std::ranges::find_if(asked, needs_mesh);
  const bool is_needed = strategy != asked.end();
  const std::optional<DeviceMesh>& mesh = options_.mesh;
  FSDP_CHECK(mesh.has_value() == is_needed, ErrorCode::kInvalidArgument,
             "[fully_shard] the strategy ", to_string(is_needed ? *strategy : options_.strategy),
             is_needed ? " needs Options::mesh, which says who is whose replica"
                       : " has no use for Options::mesh: take a hybrid strategy, or leave it out");
  if (!is_needed) {
    return {};
  }
  FSDP_CHECK(&mesh->world().job() == link_.job.get(), ErrorCode::kInvalidArgument,
             "[fully_shard] Options::mesh is of another world than the one that is sharded over");
  mesh->refuse_others({DeviceMesh::kReplicate, DeviceMesh::kShard},
                      std::string("[fully_shard] the strategy ") + to_string(*strategy));
  return {.shard = &mesh->shard().transport(), .replicate = &mesh->replicate().transport()};
}

/// Which slices of a unit are whose.
void Setup::place(Unit& unit, const Groups& mesh) const {
  unit.placement = make_placement(unit.placement.strategy, *link_.transport, mesh);
  unit.is_kept = unit.is_kept && !unit.placement.is_resident();
  std::vector<std::int64_t> numels;
  for (Parameter& parameter : unit.parameters) {
    parameter.strides = dense_strides(parameter.tensor);
    numels.push_back(parameter.numel);
  }
  const std::int64_t smallest = std::min(
      {unit.itemsize(), Unit::itemsize_of(unit.param_dtype), Unit::itemsize_of(unit.reduce_dtype)});
  const std::int64_t align = std::max<std::int64_t>(1, options_.memory.align_bytes / smallest);
  unit.layout =
      std::make_unique<layout::UnitLayout>(std::move(numels), unit.placement.slices, align);
  set_pieces(unit);
}

bool Setup::is_aliased() const {
  const bool is_offloaded = copier_ != nullptr;
  FSDP_CHECK(
      options_.memory.store != Store::kAliased || !is_offloaded, ErrorCode::kUnsupported,
      "[fully_shard] MemoryOptions::offload with Store::kAliased: there a shard is a part of the "
      "gathered unit and cannot live in other memory. Use Store::kSlots");
  const c10::Device device = partition_.units.front().device;
  FSDP_CHECK(options_.memory.store != Store::kAliased || device.is_cpu(), ErrorCode::kUnsupported,
             "[fully_shard] Store::kAliased and a module on ", device,
             ": ranks share memory of the host only. Use Store::kSlots");
  return options_.memory.store == Store::kAliased ||
         (options_.memory.store == Store::kAuto && link_.transport->traits().shares_memory &&
          device.is_cpu() && !is_offloaded);
}

/// Slots and buffers.
schedule::Config Setup::schedule_config() const {
  const Bundles& bundles = partition_.bundles;
  std::vector<int> kept, own_buffers;
  int others = 0;
  for (int bundle = 0; bundle < bundles.count(); ++bundle) {
    if (std::ranges::any_of(bundles.members(bundle), [&](int unit) {
          return partition_.units[static_cast<std::size_t>(unit)].is_kept;
        })) {
      kept.push_back(bundle);
    }
    const bool is_spread_over_backward =
        bundle == partition_.root || bundle == partition_.replicated;
    if (is_spread_over_backward && bundles.count() > 1) {
      own_buffers.push_back(bundle);
    } else {
      ++others;
    }
  }
  return {.units = bundles.count(),
          .prefetch = options_.memory.prefetch,
          .slots = 1 + options_.memory.prefetch + options_.memory.extra_slots,
          .reduce_buffers = std::clamp(others, 1, 2),
          .kept = std::move(kept),
          .own_buffers = std::move(own_buffers)};
}

}  // namespace fsdp::engine
