// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/ema.hpp"

#include <ATen/ops/clone.h>
#include <ATen/ops/lerp.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::optim {
namespace {

void check_decay(double decay) {
  FSDP_CHECK(decay >= 0 && decay < 1, ErrorCode::kInvalidArgument, "[Ema] decay is ", decay,
             ", must be at least 0 and below 1");
}

}  // namespace

Ema::Ema(Sharded sharded, double decay)
    : sharded_(std::move(sharded)),
      decay_(decay),
      memory_(sharded_.shard_access(), memory::Kind::kMoments) {
  check_decay(decay);
  join_new();
}

void Ema::set_decay(double decay) {
  check_decay(decay);
  decay_ = decay;
}

namespace {

auto find(std::vector<NamedAverage>& averages, const std::string& name) {
  return std::find_if(averages.begin(), averages.end(),
                      [&](const NamedAverage& average) { return average.name == name; });
}

}  // namespace

void Ema::join(const NamedShard& parameter) {
  const OwnShards own;
  const auto left = find(left_, parameter.name);
  if (left != left_.end()) {
    left->average.copy_(parameter.shard);
    averages_.push_back(std::move(*left));
    left_.erase(left);
    return;
  }
  averages_.push_back({.name = parameter.name,
                       .shard = parameter.shard,
                       .average = parameter.shard.detach().clone(),
                       .unit = parameter.unit});
  memory_.add(static_cast<std::int64_t>(parameter.shard.nbytes()));
}

void Ema::join_new() {
  for (const NamedShard& parameter : sharded_.named_parameters()) {
    if (parameter.parameter.requires_grad() && find(averages_, parameter.name) == averages_.end()) {
      join(parameter);
    }
  }
}

void Ema::cover(const std::vector<std::string>& names) {
  FSDP_CHECK(!is_swapped_in_, ErrorCode::kInvalidArgument,
             "[Ema] a load while the averages are the module's weights: end the scope first");
  const auto is_covered = [&](const NamedAverage& average) {
    return std::find(names.begin(), names.end(), average.name) != names.end();
  };
  const auto leaving = std::stable_partition(averages_.begin(), averages_.end(), is_covered);
  std::move(leaving, averages_.end(), std::back_inserter(left_));
  averages_.erase(leaving, averages_.end());
  for (const NamedShard& parameter : sharded_.named_parameters()) {
    if (std::find(names.begin(), names.end(), parameter.name) != names.end() &&
        find(averages_, parameter.name) == averages_.end()) {
      join(parameter);
    }
  }
}

void Ema::update() {
  FSDP_CHECK(!is_swapped_in_, ErrorCode::kInvalidArgument,
             "[Ema] update() while the averages are the module's weights: end the scope first");
  join_new();
  const OwnShards own;
  for (NamedAverage& average : averages_) {
    average.average.lerp_(average.shard.detach(), 1 - decay_);
  }
}

void Ema::exchange() {
  const auto access = sharded_.shard_access();
  for (const NamedAverage& average : averages_) {
    access->announce_write(average.unit);
  }
  const OwnShards own;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  for (NamedAverage& average : averages_) {
    for (std::int64_t begin = 0; begin < average.shard.numel(); begin += kPiece) {
      const std::int64_t numel = std::min(kPiece, average.shard.numel() - begin);
      at::Tensor weight = average.shard.detach().narrow(0, begin, numel);
      at::Tensor mean = average.average.narrow(0, begin, numel);
      const at::Tensor kept = weight.clone();
      weight.copy_(mean);
      mean.copy_(kept);
    }
  }
}

Ema::Scope Ema::swap_in() { return Scope(*this); }

Ema::Scope::Scope(Ema& ema) : ema_(&ema) {
  FSDP_CHECK(!ema.is_swapped_in_, ErrorCode::kInvalidArgument,
             "[Ema] the averages are swapped in already");
  ema.exchange();
  ema.is_swapped_in_ = true;
}

void Ema::Scope::end() {
  if (ema_ != nullptr) {
    Ema& ema = *std::exchange(ema_, nullptr);
    ema.exchange();
    ema.is_swapped_in_ = false;
  }
}

Ema::Scope::~Scope() {
  try {
    end();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::kWarn, "[Ema] the module keeps the averages: ", error.what());
  }
}

}  // namespace fsdp::optim
