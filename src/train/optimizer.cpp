// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.hpp"

#include <utility>

#include "fsdp/optim/adamw.hpp"
#include "fsdp/optim/lion.hpp"
#include "fsdp/optim/muon.hpp"
#include "fsdp/optim/sgd.hpp"

namespace fsdp::train::detail {
namespace {

std::unique_ptr<optim::FlatOptimizer> make_rule(const TrainConfig& config, const Sharded& sharded) {
  const optim::AdamWOptions adamw{.lr = config.lr,
                                  .beta1 = config.beta1,
                                  .beta2 = config.beta2,
                                  .eps = config.eps,
                                  .weight_decay = config.weight_decay};
  switch (config.optimizer) {
    case OptimizerKind::kAdamW: return std::make_unique<optim::AdamW>(sharded, adamw);
    case OptimizerKind::kSgd:
      return std::make_unique<optim::SGD>(sharded,
                                          optim::SGDOptions{.lr = config.lr,
                                                            .momentum = config.effective_momentum(),
                                                            .weight_decay = config.weight_decay});
    case OptimizerKind::kLion:
      return std::make_unique<optim::Lion>(sharded,
                                           optim::LionOptions{.lr = config.lr,
                                                              .beta1 = config.beta1,
                                                              .beta2 = config.beta2,
                                                              .weight_decay = config.weight_decay});
    case OptimizerKind::kMuon: {
      // One rate for both rules, so matrices move as far as AdamW would move them.
      const optim::MuonOptions muon{.lr = config.lr,
                                    .momentum = config.effective_momentum(),
                                    .weight_decay = config.weight_decay,
                                    .scale = optim::MuonScale::kMatchAdamW};
      return std::make_unique<optim::Muon>(sharded, muon, models::token_tables(config.model),
                                           adamw);
    }
  }
  return nullptr;
}

}  // namespace

void Optimizer::step(double lr) {
  for (int group = 0; group < rule_->groups(); ++group) {
    rule_->set_values(group, {{"lr", lr}});
  }
  rule_->step();
}

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Sharded& sharded) {
  return std::make_unique<Optimizer>(make_rule(config, sharded));
}

}  // namespace fsdp::train::detail
