// SPDX-License-Identifier: Apache-2.0
/// Stochastic gradient descent over whole flat shards, with momentum if asked for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/optim/flat_optimizer.hpp"

namespace fsdp::optim {

/// As torch::optim::SGD: the first step of a parameter takes its gradient as momentum, undamped.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< L2: it passes through the momentum
  bool nesterov = false;    ///< Sutskever et al., 2013; needs momentum and no dampening
};

/// *Invariants*, *Thread safety*: those of FlatOptimizer. *Example*:
/// `fsdp::optim::SGD optimizer(sharded, {.lr = 0.1, .momentum = 0.9});`
class SGD : public FlatOptimizer {
 public:
  /// All parameters in one group. @memory a momentum of the shards' size and dtype, where
  /// momentum > 0 @throws Error kInvalidArgument for numbers out of their range
  explicit SGD(Sharded sharded, SGDOptions options = {});
  /// @throws Error also kNotFound for a pattern that fits no parameter
  SGD(Sharded sharded, std::vector<Group<SGDOptions>> groups);

  /// To change between steps. A momentum of 0 has no buffer, so it stays 0: step() throws
  /// kInvalidArgument else.
  SGDOptions& options(int group = 0) { return options_.at(static_cast<std::size_t>(group)); }

  std::map<std::string, double> values(int group) const override;
  void set_values(int group, const std::map<std::string, double>& values) override;

 private:
  void update(const Run& run) override;
  std::vector<SGDOptions> options_;
};

}  // namespace fsdp::optim
