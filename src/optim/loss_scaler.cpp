// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/loss_scaler.hpp"

#include <cmath>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/clip.hpp"

namespace fsdp {

namespace {

void check_scale(double scale) {
  FSDP_CHECK(std::isfinite(scale) && scale > 0, ErrorCode::kInvalidArgument,
             "[LossScaler] the scale is ", scale, ", must be positive and finite");
}

}  // namespace

LossScaler::LossScaler(Sharded sharded, LossScalerOptions options)
    : sharded_(std::move(sharded)), options_(options), state_{.scale = options.init_scale} {
  check_scale(options.init_scale);
  FSDP_CHECK(options.growth_factor >= 1 && options.backoff_factor > 0 &&
                 options.backoff_factor < 1 && options.growth_interval > 0,
             ErrorCode::kInvalidArgument, "[LossScaler] growth factor ", options.growth_factor,
             " must be 1 or more, backoff factor ", options.backoff_factor,
             " between 0 and 1, growth interval ", options.growth_interval, " positive");
  if (options.enabled) {
    sharded_.shard_access()->set_loss_scaled();
  }
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) {
    return loss;
  }
  // 65536 is no number of float16.
  const bool is_low = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  return (is_low ? loss.to(at::kFloat) : loss).mul(state_.scale);
}

GradientCheck LossScaler::unscale_(std::optional<double> max_norm) {
  FSDP_CHECK(!last_.has_value(), ErrorCode::kInvalidArgument,
             "[LossScaler] unscale_() was called twice: call update() after each step");
  FSDP_CHECK(max_norm.value_or(1.0) > 0, ErrorCode::kInvalidArgument, "[LossScaler] max_norm is ",
             max_norm.value_or(1.0), ", must be positive");
  const double scaled_norm = grad_norm(sharded_);
  if (!std::isfinite(scaled_norm)) {
    last_ = skip_step(sharded_, scaled_norm);
    return *last_;
  }
  last_ = GradientCheck{.norm = scaled_norm / current_scale()};
  double factor = 1.0 / current_scale();
  if (max_norm.has_value()) {
    // The same small term as torch::nn::utils::clip_grad_norm_.
    factor *= std::min(1.0, *max_norm / (last_->norm + 1e-6));
  }
  if (factor != 1.0) {
    const std::vector<at::Tensor> shards = sharded_.parameters();
    const OwnShards own;
    for (const at::Tensor& shard : shards) {
      if (shard.grad().defined()) {
        shard.grad().mul_(factor);
      }
    }
  }
  return *last_;
}

void LossScaler::update() {
  FSDP_CHECK(last_.has_value(), ErrorCode::kInvalidArgument,
             "[LossScaler] update() without unscale_(): gradients are still scaled");
  const bool is_finite = std::isfinite(last_->norm);
  last_.reset();
  if (!options_.enabled) {
    return;
  }
  if (!is_finite) {
    state_.scale *= options_.backoff_factor;
    state_.growth_tracker = 0;
  } else if (++state_.growth_tracker == options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    state_.scale = std::isfinite(static_cast<float>(grown)) ? grown : state_.scale;
    state_.growth_tracker = 0;
  }
}

void LossScaler::set_state(LossScalerState state) {
  check_scale(state.scale);
  FSDP_CHECK(state.growth_tracker >= 0, ErrorCode::kInvalidArgument,
             "[LossScaler] the growth tracker is ", state.growth_tracker, ", below zero");
  state_ = state;
}

}  // namespace fsdp
