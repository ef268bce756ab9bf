// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/adamw.hpp"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "fsdp/base/error.hpp"
#include "optim/flat_views.hpp"

namespace fsdp::optim {

AdamW::AdamW(Sharded sharded, AdamWOptions options)
    : sharded_(std::move(sharded)), options_(options) {
  FSDP_CHECK(options.lr >= 0 && options.eps >= 0 && options.weight_decay >= 0 &&
                 options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             ErrorCode::kInvalidArgument, "[AdamW] lr ", options.lr, ", betas ", options.beta1,
             " and ", options.beta2, ", eps ", options.eps, ", weight decay ", options.weight_decay,
             ": none may be negative, betas must be below 1");
  c10::NoGradGuard no_grad;
  const std::vector<FlatShard> flats = sharded_.flats();
  first_moments_.resize(flats.size());
  second_moments_.resize(flats.size());
  for (std::size_t unit = 0; unit < flats.size(); ++unit) {
    if (flats[unit].trains) {
      make_moments(unit, flats[unit].shard);
    }
  }
}

void AdamW::make_moments(std::size_t unit, const at::Tensor& shard) {
  if (first_moments_[unit].defined()) {
    return;
  }
  first_moments_[unit] = at::zeros_like(shard);
  second_moments_[unit] = at::zeros_like(shard);
  const auto bytes = 2 * static_cast<std::int64_t>(shard.nbytes());
  sharded_.ledger().add(memory::Kind::kMoments, bytes);
  ledger_bytes_ += bytes;
}

AdamW::~AdamW() { sharded_.ledger().remove(memory::Kind::kMoments, ledger_bytes_); }

void AdamW::step() {
  c10::NoGradGuard no_grad;
  ++steps_;
  FlatViews views = views_with_gradients(sharded_);
  if (views.shards.empty()) {
    return;
  }
  const std::vector<at::Tensor> flats = sharded_.flat_shards();
  for (std::size_t unit : views.units) {
    make_moments(unit, flats[unit]);  // of one that was frozen until now
  }
  std::vector<at::Tensor> first, second;
  for (std::size_t i = 0; i < views.shards.size(); ++i) {
    const auto part = [&](const at::Tensor& moments) {
      return moments.narrow(0, views.offsets[i], views.shards[i].numel());
    };
    first.push_back(part(first_moments_[views.units[i]]));
    second.push_back(part(second_moments_[views.units[i]]));
  }
  const std::vector<at::Tensor> steps(views.shards.size(),
                                      at::full({}, static_cast<double>(steps_), at::kFloat));
  at::_fused_adamw_(views.shards, views.grads, first, second, {}, steps, options_.lr,
                    options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
                    /*amsgrad=*/false,
                    /*maximize=*/false);
}

void AdamW::set_steps(std::int64_t steps) {
  FSDP_CHECK(steps >= 0, ErrorCode::kInvalidArgument, "[AdamW] ", steps, " steps");
  steps_ = steps;
}

AdamW::Moments AdamW::moments(const at::Tensor& shard) const {
  const std::vector<at::Tensor> flats = sharded_.flat_shards();
  for (std::size_t unit = 0; unit < flats.size(); ++unit) {
    if (flats[unit].storage().is_alias_of(shard.storage())) {
      if (!first_moments_[unit].defined()) {
        return {};
      }
      const std::int64_t offset = shard.storage_offset() - flats[unit].storage_offset();
      return {.first = first_moments_[unit].narrow(0, offset, shard.numel()),
              .second = second_moments_[unit].narrow(0, offset, shard.numel())};
    }
  }
  fail(ErrorCode::kInvalidArgument, "[AdamW] the tensor is no shard of this module");
}

}  // namespace fsdp::optim
