// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/shard_grad.hpp"

#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/host_language.hpp"

namespace fsdp::engine {

namespace {

/// See NOTE [two handles on one gradient].
class FollowingMeta : public torch::autograd::AutogradMeta {
 public:
  FollowingMeta(const at::Tensor& shard, std::weak_ptr<BackwardTarget> target, int unit,
                int parameter)
      : AutogradMeta(shard.unsafeGetTensorImpl(), shard.requires_grad()),
        target_(std::move(target)),
        unit_(unit),
        parameter_(parameter) {
    grad_ = shard.grad();
  }
  torch::autograd::Variable& mutable_grad() override {
    follow();
    return grad_;
  }
  const torch::autograd::Variable& grad() const override {
    follow();
    return grad_;
  }

 private:
  void follow() const {
    try {
      if (const auto target = target_.lock()) {
        target->shard_grad_asked(unit_, parameter_);
      }
    } catch (const Error& error) {
      base::raise_for_host(error);
      throw;
    }
  }

  std::weak_ptr<BackwardTarget> target_;
  int unit_;
  int parameter_;
};

}  // namespace

void install_grad_follower(std::weak_ptr<BackwardTarget> target, int unit, int parameter,
                           const at::Tensor& shard) {
  shard.unsafeGetTensorImpl()->set_autograd_meta(
      std::make_unique<FollowingMeta>(shard, std::move(target), unit, parameter));
}

}  // namespace fsdp::engine
