// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.hpp"

#include <utility>

#include "fsdp/optim/adamw.hpp"
#include "fsdp/optim/lion.hpp"
#include "fsdp/optim/muon.hpp"
#include "fsdp/optim/sgd.hpp"

namespace fsdp::train::detail {
namespace {

/// Norms and biases, and whatever has one dimension, are not pulled to zero, unless asked for.
template <class Rule, class Options>
std::unique_ptr<optim::FlatOptimizer> grouped(const Sharded& sharded, const TrainConfig& config,
                                              const Options& options) {
  if (config.decay_all || config.weight_decay == 0) {
    return std::make_unique<Rule>(sharded, options);
  }
  std::vector<optim::Group<Options>> groups;
  double weight_decay = options.weight_decay;  // of the first group, see decay_rule()
  for (const ParameterGroup& group : sharded.param_groups(decay_rule())) {
    Options own = options;
    own.weight_decay = weight_decay;
    weight_decay = 0;
    if (!group.names.empty()) {
      groups.push_back({group.names, own});
    }
  }
  return std::make_unique<Rule>(sharded, std::move(groups));
}

std::unique_ptr<optim::FlatOptimizer> make_rule(const TrainConfig& config, const Sharded& sharded) {
  const optim::AdamWOptions adamw{.lr = config.lr,
                                  .beta1 = config.beta1,
                                  .beta2 = config.beta2,
                                  .eps = config.eps,
                                  .weight_decay = config.weight_decay};
  switch (config.optimizer) {
    case OptimizerKind::kAdamW: return grouped<optim::AdamW>(sharded, config, adamw);
    case OptimizerKind::kSgd:
      return grouped<optim::SGD>(sharded, config,
                                 optim::SGDOptions{.lr = config.lr,
                                                   .momentum = config.effective_momentum(),
                                                   .weight_decay = config.weight_decay});
    case OptimizerKind::kLion:
      return grouped<optim::Lion>(sharded, config,
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
