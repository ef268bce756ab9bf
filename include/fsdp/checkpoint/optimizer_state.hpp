// SPDX-License-Identifier: Apache-2.0
/// An optimizer as checkpoints see it: tensors shaped like the parameters' shards, step counters by
/// parameter, and its options. Everything goes by the parameters' names, so groups and parameters
/// may come in another order at load.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace torch::optim {
class Optimizer;
}

namespace fsdp::optim {
class Ema;
class FlatOptimizer;
}  // namespace fsdp::optim

namespace fsdp::checkpoint {

/// One tensor of a parameter's optimizer state.
struct StateShard {
  std::string parameter;  ///< its name in Sharded::named_parameters()
  std::string state;      ///< "exp_avg", "momentum_buffer", ...
  at::Tensor values;      ///< 1-D, of the parameter's shard
};

/// The states that a checkpoint has, by parameter: {"h.0.weight", {"exp_avg", "exp_avg_sq"}}.
using StoredStates = std::map<std::string, std::set<std::string>>;

/// What an optimizer has to offer in order to be saved and loaded. Implement it for one's own, or
/// take one of the functions below.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  /// The rule of the update: "AdamW", "SGD", ...; the name under which options are stored.
  virtual std::string kind() const = 0;
  /// The state that is there, the same names on all ranks.
  virtual std::vector<StateShard> shards() const = 0;
  /// Steps taken by parameter; empty where the rule counts none.
  virtual std::map<std::string, std::int64_t> steps() const = 0;
  /// Options by group; a group is called after the alphabetically first of its parameters.
  virtual std::map<std::string, archive::Values> options() const = 0;

  /// A checkpoint is about to be loaded that has these states. Makes room (zeros) for them, so that
  /// shards() has them. A parameter with none there was never stepped: it is as before its first
  /// step from here on, and shards() has nothing of it.
  virtual void allocate(const StoredStates& stored) = 0;
  virtual void set_steps(const std::map<std::string, std::int64_t>& steps) = 0;
  /// Options of groups that are not there, and unknown ones, are ignored.
  virtual void set_options(const std::map<std::string, archive::Values>& options) = 0;
};

/// For AdamW, SGD, Lion and Muon of fsdp::optim, and whatever else derives from FlatOptimizer.
/// `optimizer` must outlive the result.
std::unique_ptr<OptimizerState> state_of(optim::FlatOptimizer& optimizer);

/// The same for torch::optim::AdamW, Adam and SGD over sharded.parameters().
/// @throws Error kUnsupported for another optimizer; kInvalidArgument when it was built on a tensor
/// that is no shard of `sharded`
std::unique_ptr<OptimizerState> state_of(torch::optim::Optimizer& optimizer,
                                         const Sharded& sharded);

/// Saves and loads the averages of `ema` beside what `state` (null: nothing) holds, each as state
/// "ema" of its parameter. `ema` must outlive the result.
std::unique_ptr<OptimizerState> with_averages(std::unique_ptr<OptimizerState> state,
                                              optim::Ema& ema);

}  // namespace fsdp::checkpoint
