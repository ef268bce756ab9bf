// SPDX-License-Identifier: Apache-2.0
/// What the optimizers of this library share: parameters in groups by name, state that is there
/// from the start, one pass over long runs of memory instead of one small update per parameter, and
/// what a checkpoint needs to know. A rule that treats each element by itself becomes an optimizer
/// by element_wise.hpp; Muon, which needs whole matrices, derives from it directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::optim {

/// Parameters that share hyper-parameters.
template <class Options>
struct Group {
  std::vector<std::string> parameters;  ///< patterns, see groups.hpp
  Options options = {};
};

/// A parameter as its optimizer keeps it.
struct TrainedParameter {
  NamedShard shard;
  int group = 0;
  std::int64_t steps = 0;  ///< taken by this parameter
  /// In the order of FlatOptimizer::state_names(); empty as long as it is frozen.
  std::vector<at::Tensor> states;
};

/// An optimizer of one rank's shards. A parameter without a gradient is left alone, and its steps
/// are not counted: as in LibTorch, each parameter has a counter of its own.
///
/// *Invariants*: the state of a parameter that trains exists from construction (of one that is
/// unfrozen later: from its first gradient), zero, entered in the ledger and in the promise under
/// kMoments; making it changes nothing else. Counters are equal on all ranks, also where a shard is
/// empty. Hyper-parameters are, too: a backward on ranks that have other ones throws kMismatch on
/// all, and names group and value. *Thread safety*: one thread at a time.
class FlatOptimizer {
 public:
  /// Neighbours in memory with equal hyper-parameters and counters, updated as one. Tensors are
  /// 1-D, of equal length and contiguous.
  struct Run {
    int group = 0;
    std::int64_t step = 0;  ///< this one, counted from 1
    at::Tensor shard, grad;
    std::vector<at::Tensor> states;
  };

  virtual ~FlatOptimizer() = default;
  FlatOptimizer(const FlatOptimizer&) = delete;
  FlatOptimizer& operator=(const FlatOptimizer&) = delete;

  /// Updates this rank's shards from their gradients, in place, one pass over shard, gradient and
  /// state. Local, unless an optimizer says otherwise; call it on all ranks, since shards in shared
  /// memory wait for each other before the first write. @memory nothing of size
  virtual void step();
  /// Forgets all gradients. Local.
  void zero_grad() { sharded_.zero_grad(); }

  const Sharded& sharded() const { return sharded_; }
  /// The parameters that are in a group, in the module's order.
  const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  /// Names of those in no group: they are not trained. A line in rank 0's log names them, too.
  const std::vector<std::string>& untrained() const { return untrained_; }
  int groups() const { return static_cast<int>(state_names_.size()); }
  /// The most steps that any parameter has taken.
  std::int64_t steps() const;

  // What checkpoints ask; see checkpoint::state_of().

  /// The rule of the update, "AdamW".
  const std::string& kind() const { return kind_; }
  /// What a parameter of this group has besides its shard: "exp_avg", ...
  const std::vector<std::string>& state_names(int group) const {
    return state_names_[static_cast<std::size_t>(group)];
  }
  /// Hyper-parameters of a group by name; truths are 0 or 1.
  virtual std::map<std::string, double> values(int group) const = 0;
  /// The same one after the other: what ranks compare in each backward. A rule of one's own that
  /// allocates nothing in a step overrides this too.
  virtual void visit_values(int group,
                            const std::function<void(const char* name, double value)>& visit) const;
  /// Takes over those that it knows.
  virtual void set_values(int group, const std::map<std::string, double>& values) = 0;
  /// Makes room for the state of these parameters, also of frozen ones, and takes each for one that
  /// has been stepped.
  void allocate(const std::vector<std::string>& names);
  /// Takes each of these for one that has never been stepped.
  void forget(const std::vector<std::string>& names);
  /// @throws Error kInvalidArgument for a negative number
  void set_steps(const std::map<std::string, std::int64_t>& steps);

 protected:
  struct GroupSpec {
    std::vector<std::string> parameters;  ///< patterns
    std::vector<std::string> states;
  };

  /// @memory one tensor of the shard's size and dtype per parameter and state
  /// @throws Error kNotFound for a pattern that fits no parameter
  FlatOptimizer(std::string kind, Sharded sharded, std::vector<GroupSpec> groups);

  /// Updates the elements of one run. The engine lets everything pass meanwhile, see
  /// OwnShards.
  virtual void update(const Run& run) = 0;
  /// Counts a step of every parameter that has a gradient and returns them as runs. Those of
  /// `except_group` are counted and left to the caller.
  std::vector<Run> begin_step(int except_group = -1);

 private:
  void make_states(const std::vector<std::size_t>& parameters);
  std::uint64_t hash_of_values() const;
  std::vector<std::pair<std::string, double>> named_values() const;

  std::string kind_;
  Sharded sharded_;
  std::vector<std::vector<std::string>> state_names_;
  std::vector<TrainedParameter> parameters_;
  std::vector<std::size_t> in_memory_order_;  ///< indices into parameters_
  std::vector<std::string> untrained_;
  HeldMemory moments_;
  Compared compared_;
};

}  // namespace fsdp::optim
