// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/flat_optimizer.hpp"

#include <ATen/ops/narrow.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/named_values.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/groups.hpp"
#include "optim/stretches.hpp"

namespace fsdp::optim {

FlatOptimizer::FlatOptimizer(std::string kind, Sharded sharded, std::vector<GroupSpec> groups)
    : kind_(std::move(kind)),
      sharded_(std::move(sharded)),
      moments_(sharded_.shard_access(), memory::Kind::kMoments),
      compared_(sharded_.shard_access(), {.hash = [this] { return hash_of_values(); },
                                          .list = [this] { return named_values(); }}) {
  std::vector<std::vector<std::string>> patterns;
  for (GroupSpec& group : groups) {
    patterns.push_back(std::move(group.parameters));
    state_names_.push_back(std::move(group.states));
  }
  const std::vector<int> assigned = assign_groups(sharded_, patterns);
  const std::vector<NamedShard> shards = sharded_.named_parameters();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (assigned[i] >= 0) {
      parameters_.push_back({.shard = shards[i], .group = assigned[i], .states = {}});
    } else {
      untrained_.push_back(shards[i].name);
    }
  }
  if (!untrained_.empty() && sharded_.world().rank() == 0) {
    base::log(base::LogLevel::kWarn, kind_, ": ", untrained_.size(), " of ", shards.size(),
              " parameters are in no group and are not trained: ", base::list_text(untrained_));
  }
  in_memory_order_.resize(parameters_.size());
  std::iota(in_memory_order_.begin(), in_memory_order_.end(), std::size_t{0});
  std::stable_sort(in_memory_order_.begin(), in_memory_order_.end(),
                   [&](std::size_t left, std::size_t right) {
                     const auto place = [&](std::size_t index) {
                       const NamedShard& of = parameters_[index].shard;
                       return std::pair(of.unit, of.shard.storage_offset());
                     };
                     return place(left) < place(right);
                   });
  std::vector<std::size_t> training;
  for (const std::size_t index : in_memory_order_) {
    if (parameters_[index].shard.parameter.requires_grad()) {
      training.push_back(index);
    }
  }
  make_states(training);
}

/// One buffer for each stretch of neighbours with equally many states, so that neighbours among the
/// shards are neighbours here. One that covers all of a unit is as long as the unit's slice.
void FlatOptimizer::make_states(const std::vector<std::size_t>& indices) {
  const OwnShards own;
  const std::vector<FlatShard> flats = sharded_.shard_access()->flats();
  std::vector<std::int64_t> logical_numel(flats.size(), 0);
  for (const NamedShard& parameter : sharded_.named_parameters()) {
    logical_numel[static_cast<std::size_t>(parameter.unit)] += parameter.shard.numel();
  }
  std::int64_t bytes = 0;
  for (std::size_t begin = 0, end = 0; begin < indices.size(); begin = end) {
    const int unit = parameters_[indices[begin]].shard.unit;
    const at::Tensor& flat = flats[static_cast<std::size_t>(unit)].shard;
    const std::size_t states = state_names(parameters_[indices[begin]].group).size();
    std::int64_t numel = 0;
    for (end = begin; end < indices.size(); ++end) {
      const TrainedParameter& parameter = parameters_[indices[end]];
      if (parameter.shard.unit != unit || state_names(parameter.group).size() != states) {
        break;
      }
      numel += parameter.shard.shard.numel();
    }
    const bool is_whole = numel == logical_numel[static_cast<std::size_t>(unit)];
    const std::int64_t length = is_whole ? flat.numel() : numel;
    for (std::size_t state = 0; state < states; ++state) {
      const at::Tensor buffer = at::zeros({length}, flat.options());
      bytes += static_cast<std::int64_t>(buffer.nbytes());
      std::int64_t offset = 0;
      for (std::size_t i = begin; i < end; ++i) {
        TrainedParameter& parameter = parameters_[indices[i]];
        const std::int64_t count = parameter.shard.shard.numel();
        parameter.states.push_back(buffer.narrow(0, offset, count));
        offset += count;
      }
    }
  }
  moments_.add(bytes);
}

void FlatOptimizer::visit_values(
    int group, const std::function<void(const char* name, double value)>& visit) const {
  for (const auto& [name, value] : values(group)) {
    visit(name.c_str(), value);
  }
}

std::uint64_t FlatOptimizer::hash_of_values() const {
  base::Fnv1a hash;
  for (int group = 0; group < groups(); ++group) {
    visit_values(group,
                 [&hash](const char*, double value) { hash.add_value(comm::comparable(value)); });
  }
  return hash.value();
}

std::vector<std::pair<std::string, double>> FlatOptimizer::named_values() const {
  std::vector<std::pair<std::string, double>> named;
  for (int group = 0; group < groups(); ++group) {
    std::string first;
    for (const TrainedParameter& parameter : parameters_) {
      if (parameter.group == group && (first.empty() || parameter.shard.name < first)) {
        first = parameter.shard.name;
      }
    }
    visit_values(group, [&](const char* name, double value) {
      named.emplace_back(comm::name_of_hyper_parameter(name, first, kind_), value);
    });
  }
  return named;
}

void FlatOptimizer::step() {
  const std::vector<Run> runs = begin_step();
  const OwnShards own;
  for (const Run& run : runs) {
    update(run);
  }
}

std::vector<FlatOptimizer::Run> FlatOptimizer::begin_step(int except_group) {
  std::vector<std::size_t> with_grad, stateless;
  const auto access = sharded_.shard_access();
  int announced = -1;
  for (const std::size_t index : in_memory_order_) {
    const TrainedParameter& parameter = parameters_[index];
    const at::Tensor& shard = parameter.shard.shard;
    if (!shard.grad().defined()) {
      continue;
    }
    with_grad.push_back(index);
    if (parameter.states.size() != state_names(parameter.group).size()) {
      stateless.push_back(index);
    }
    if (parameter.shard.unit != announced) {
      announced = parameter.shard.unit;
      access->announce_write(announced);
    }
  }
  if (!stateless.empty()) {
    make_states(stateless);
  }
  const OwnShards own;
  std::vector<Run> runs;
  std::int64_t numel = 0;  // of the last run
  const auto finish_last = [&] {
    if (!runs.empty()) {
      runs.back().shard = stretched(runs.back().shard, numel);
      runs.back().grad = stretched(runs.back().grad, numel);
      for (at::Tensor& state : runs.back().states) {
        state = stretched(state, numel);
      }
    }
  };
  for (const std::size_t index : with_grad) {
    TrainedParameter& parameter = parameters_[index];
    const at::Tensor& shard = parameter.shard.shard;
    ++parameter.steps;
    if (parameter.group == except_group || shard.numel() == 0) {
      continue;
    }
    const at::Tensor grad = shard.grad().contiguous();
    const auto joins = [&](const Run& run) {
      bool is_next = run.group == parameter.group && run.step == parameter.steps &&
                     follows(run.shard, numel, shard) && follows(run.grad, numel, grad);
      for (std::size_t state = 0; is_next && state < run.states.size(); ++state) {
        is_next = follows(run.states[state], numel, parameter.states[state]);
      }
      return is_next;
    };
    if (!runs.empty() && joins(runs.back())) {
      numel += shard.numel();
      continue;
    }
    finish_last();
    runs.push_back({.group = parameter.group,
                    .step = parameter.steps,
                    .shard = shard,
                    .grad = grad,
                    .states = parameter.states});
    numel = shard.numel();
  }
  finish_last();
  return runs;
}

std::int64_t FlatOptimizer::steps() const {
  std::int64_t most = 0;
  for (const TrainedParameter& parameter : parameters_) {
    most = std::max(most, parameter.steps);
  }
  return most;
}

void FlatOptimizer::allocate(const std::vector<std::string>& names) {
  std::vector<std::size_t> stateless;
  for (const std::size_t index : in_memory_order_) {
    TrainedParameter& parameter = parameters_[index];
    if (std::find(names.begin(), names.end(), parameter.shard.name) == names.end()) {
      continue;
    }
    parameter.steps = std::max<std::int64_t>(parameter.steps, 1);
    if (parameter.states.size() != state_names(parameter.group).size()) {
      stateless.push_back(index);
    }
  }
  if (!stateless.empty()) {
    make_states(stateless);
  }
}

void FlatOptimizer::forget(const std::vector<std::string>& names) {
  const OwnShards own;
  for (TrainedParameter& parameter : parameters_) {
    if (std::find(names.begin(), names.end(), parameter.shard.name) != names.end()) {
      parameter.steps = 0;
      for (at::Tensor& state : parameter.states) {
        state.zero_();
      }
    }
  }
}

void FlatOptimizer::set_steps(const std::map<std::string, std::int64_t>& steps) {
  for (TrainedParameter& parameter : parameters_) {
    const auto found = steps.find(parameter.shard.name);
    if (found != steps.end()) {
      FSDP_CHECK(found->second >= 0, ErrorCode::kInvalidArgument, "[", kind_, "] \"",
                 parameter.shard.name, "\" cannot have taken ", found->second, " steps");
      parameter.steps = found->second;
    }
  }
}

}  // namespace fsdp::optim
