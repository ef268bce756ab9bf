// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.hpp"

#include <torch/torch.h>

#include "fsdp/optim/adamw.hpp"

namespace fsdp::train::detail {
namespace {

class FusedAdamW : public Optimizer {
 public:
  FusedAdamW(const TrainConfig& config, const Sharded& sharded)
      : optimizer_(sharded, {.lr = config.lr,
                             .beta1 = config.beta1,
                             .beta2 = config.beta2,
                             .eps = config.eps,
                             .weight_decay = config.weight_decay}) {}
  void step(double lr) override {
    optimizer_.options().lr = lr;
    optimizer_.step();
  }
  std::unique_ptr<checkpoint::OptimizerState> state() override {
    return checkpoint::state_of(optimizer_);
  }

 private:
  optim::AdamW optimizer_;
};

class Sgd : public Optimizer {
 public:
  Sgd(const TrainConfig& config, const Sharded& sharded)
      : sharded_(sharded),
        optimizer_(sharded.parameters(),
                   torch::optim::SGDOptions(config.lr).weight_decay(config.weight_decay)) {}
  void step(double lr) override {
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(lr);
    }
    optimizer_.step();
  }
  std::unique_ptr<checkpoint::OptimizerState> state() override {
    return checkpoint::state_of(optimizer_, sharded_);
  }

 private:
  Sharded sharded_;
  torch::optim::SGD optimizer_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Sharded& sharded) {
  if (config.optimizer == OptimizerKind::kSgd) {
    return std::make_unique<Sgd>(config, sharded);
  }
  return std::make_unique<FusedAdamW>(config, sharded);
}

int moments(OptimizerKind kind) { return kind == OptimizerKind::kAdamW ? 2 : 0; }

}  // namespace fsdp::train::detail
