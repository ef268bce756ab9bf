// SPDX-License-Identifier: Apache-2.0
/// Lion over whole flat shards: steps by the sign of an average of gradients, with half of AdamW's
/// state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fsdp/optim/element_wise.hpp"

namespace fsdp::optim {

/// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, program 1. The authors
/// advise a third to a tenth of AdamW's learning rate and three to ten times its decay.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;   ///< of the average whose sign is taken
  double beta2 = 0.99;  ///< of the average that is kept
  double weight_decay = 0;
};

/// See ElementRule. None of the numbers may be negative, and betas must be below 1.
struct LionRule {
  using Options = LionOptions;
  static constexpr const char* kName = "Lion";
  static std::span<const Field<Options>> fields();
  static std::vector<std::string> states(const Options&) { return {"exp_avg"}; }
  static void check(const Options& options);
  static void update(const FlatOptimizer::Run& run, const Options& options);
};

/// *Example*: `fsdp::optim::Lion optimizer(sharded, {.lr = 1e-4, .weight_decay = 0.3});`
using Lion = ElementWise<LionRule>;

}  // namespace fsdp::optim
