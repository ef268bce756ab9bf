// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/muon.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/groups.hpp"

namespace fsdp::optim {
namespace {

using Options = MuonOptions;
constexpr Field<Options> kFields[] = {{"lr", &Options::lr},
                                      {"momentum", &Options::momentum},
                                      {"nesterov", &Options::nesterov},
                                      {"weight_decay", &Options::weight_decay}};
constexpr std::span<const Field<Options>> kAll(kFields);

constexpr int kMatrices = 0, kOthers = 1;

void check(const MuonOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.momentum >= 0 && options.momentum < 1 &&
                 options.weight_decay >= 0 && options.iterations >= 1,
             ErrorCode::kInvalidArgument, "[Muon] lr ", options.lr, ", momentum ", options.momentum,
             ", weight decay ", options.weight_decay, ", iterations ", options.iterations,
             ": none may be negative, momentum must be below 1 and iterations at least 1");
}

/// Multiplications of an iteration: the Gram matrix, its square, and the product with the matrix.
double cost_of(const std::vector<std::int64_t>& sizes) {
  const auto small = static_cast<double>(std::min(sizes[0], sizes[1]));
  const auto large = static_cast<double>(std::max(sizes[0], sizes[1]));
  return 2 * small * small * large + small * small * small;
}

double scale_of(const MuonOptions& options, const std::vector<std::int64_t>& sizes) {
  const auto rows = static_cast<double>(sizes[0]), columns = static_cast<double>(sizes[1]);
  return options.scale == MuonScale::kShape ? std::sqrt(std::max(1.0, rows / columns))
                                            : 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

struct Muon::Parts {
  std::vector<std::string> matrices, others;
};

Muon::Parts Muon::parts_of(const Sharded& sharded, const std::vector<std::string>& by_adamw) {
  const std::vector<int> named = assign_groups(sharded, {by_adamw});
  Parts parts;
  const std::vector<NamedShard> parameters = sharded.named_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_matrix = parameters[i].sizes.size() == 2 && named[i] < 0;
    (is_matrix ? parts.matrices : parts.others).push_back(parameters[i].name);
  }
  return parts;
}

Muon::Muon(Sharded sharded, MuonOptions options, std::vector<std::string> by_adamw,
           AdamWOptions others)
    : Muon(sharded, options, parts_of(sharded, by_adamw), others) {}

Muon::Muon(Sharded sharded, MuonOptions options, Parts parts, AdamWOptions others)
    : FlatOptimizer("Muon", std::move(sharded),
                    [&] {
                      check(options);
                      AdamWRule::check(others);
                      return std::vector<GroupSpec>{{parts.matrices, {"momentum_buffer"}},
                                                    {parts.others, {"exp_avg", "exp_avg_sq"}}};
                    }()),
      options_(options),
      others_(others),
      matrices_(std::move(parts.matrices)),
      workspace_memory_(this->sharded().shard_access(), memory::Kind::kStaging) {
  whole_ = std::make_unique<WholeTensors>(
      this->sharded(), matrices_,
      WholeTensorsOptions{
          .cost = cost_of, .dtype = options.dtype, .batch_bytes = options.batch_bytes});
  std::int64_t workspace_numel = 0;
  c10::Device device = c10::kCPU;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const TrainedParameter& parameter = parameters()[i];
    if (parameter.group == kMatrices) {
      device = parameter.shard.shard.device();
      if (whole_->owner(places_.size()) == this->sharded().world().rank()) {
        workspace_numel = std::max(workspace_numel, newton_schulz_numel(parameter.shard.sizes));
      }
      places_.push_back(i);
    }
  }
  workspace_ = at::empty({workspace_numel}, at::TensorOptions(whole_->dtype()).device(device));
  workspace_memory_.add(static_cast<std::int64_t>(workspace_.nbytes()));
}

void Muon::step() {
  const std::vector<Run> runs = begin_step(kMatrices);
  {
    const OwnShards own;
    for (const Run& run : runs) {
      update(run);
    }
  }
  update_matrices();
}

void Muon::update(const Run& run) { AdamWRule::update(run, others_); }

void Muon::update_matrices() {
  std::vector<std::size_t> with_grad;
  for (std::size_t matrix = 0; matrix < places_.size(); ++matrix) {
    if (parameters()[places_[matrix]].shard.shard.grad().defined()) {
      with_grad.push_back(matrix);
    }
  }
  const auto parameter = [&](std::size_t matrix) -> const TrainedParameter& {
    return parameters()[places_[matrix]];
  };
  {
    const OwnShards own;
    for (const std::size_t matrix : with_grad) {
      const at::Tensor& momentum = parameter(matrix).states[0];
      momentum.lerp_(parameter(matrix).shard.shard.grad(), 1 - options_.momentum);
    }
  }
  whole_->transform(
      with_grad,
      [&](std::size_t matrix, std::int64_t begin, at::Tensor dst) {
        const TrainedParameter& of = parameter(matrix);
        const at::Tensor grad = of.shard.shard.grad().narrow(0, begin, dst.numel());
        const at::Tensor momentum = of.states[0].narrow(0, begin, dst.numel());
        if (!options_.nesterov) {
          dst.copy_(momentum);
        } else if (dst.scalar_type() == grad.scalar_type()) {
          at::lerp_out(dst, grad, momentum, options_.momentum);
        } else {
          dst.copy_(at::lerp(grad, momentum, options_.momentum));
        }
      },
      [&](std::size_t, at::Tensor whole) {
        newton_schulz_(whole, options_.iterations, workspace_);
      },
      [&](std::size_t matrix, at::Tensor src) {
        const TrainedParameter& of = parameter(matrix);
        at::Tensor shard = of.shard.shard;
        shard.mul_(1 - options_.lr * options_.weight_decay);
        shard.add_(src.to(shard.scalar_type()), -options_.lr * scale_of(options_, of.shard.sizes));
      });
}

std::map<std::string, double> Muon::values(int group) const {
  return group == kOthers ? to_values(others_, AdamWRule::fields()) : to_values(options_, kAll);
}

void Muon::visit_values(int group,
                        const std::function<void(const char* name, double value)>& visit) const {
  if (group == kOthers) {
    visit_fields(others_, AdamWRule::fields(), visit);
  } else {
    visit_fields(options_, kAll, visit);
  }
}

void Muon::set_values(int group, const std::map<std::string, double>& values) {
  if (group == kOthers) {
    from_values(others_, AdamWRule::fields(), values);
  } else {
    from_values(options_, kAll, values);
  }
}

}  // namespace fsdp::optim
