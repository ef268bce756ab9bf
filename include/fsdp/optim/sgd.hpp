// SPDX-License-Identifier: Apache-2.0
/// Stochastic gradient descent over whole flat shards, with momentum if asked for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fsdp/optim/element_wise.hpp"

namespace fsdp::optim {

/// As torch::optim::SGD: the first step of a parameter takes its gradient as momentum, undamped.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< L2: it passes through the momentum
  bool nesterov = false;    ///< Sutskever et al., 2013; needs momentum and no dampening
};

/// See ElementRule. A momentum of 0 has no buffer, so it stays 0: step() throws kInvalidArgument
/// else.
struct SGDRule {
  using Options = SGDOptions;
  static constexpr const char* kName = "SGD";
  static std::span<const Field<Options>> fields();
  static std::vector<std::string> states(const Options& options);
  static void check(const Options& options);
  static void update(const FlatOptimizer::Run& run, const Options& options);
};

/// *Example*: `fsdp::optim::SGD optimizer(sharded, {.lr = 0.1, .momentum = 0.9});`
using SGD = ElementWise<SGDRule>;

}  // namespace fsdp::optim
