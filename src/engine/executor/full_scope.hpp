// SPDX-License-Identifier: Apache-2.0
/// full_parameters(): whole weights, in the shards' type, for as long as a scope lives.
///
/// NOTE [full parameters of a unit that is cast]
/// The module's tensors have the low type, what a scope shows has the shards'. So for its length
/// they get storages of their own: a view of a low-precision weight that somebody kept then reads
/// freed memory, which throws, and never the bytes of another type.
///
/// NOTE [weights replaced inside of a scope]
/// torch::load() and set_data() do not write into a weight, they put another tensor's memory into
/// its place. set_data() passes the dispatcher just before, so those weights are looked at by the
/// next touch, and all at the scope's end. What is there is copied into the scope's own whole
/// unit, as if the program had written there, and the module's tensor is a view of that again. What
/// cannot be copied without a conversion, or must not, is refused: at the touch, or at the end,
/// where nothing of the scope is written back then, and the next call throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "engine/executor/executor.hpp"
#include "engine/executor/health.hpp"
#include "engine/executor/residency.hpp"
#include "engine/unit/module_layout.hpp"
#include "engine/unit/weight_views.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class FullScope {
 public:
  /// All that is passed outlives it.
  FullScope(const ModuleLayout& layout, memory::Ledger& ledger, Counters& counters, Health& health,
            Residency& residency, Executor& executor)
      : layout_(layout),
        ledger_(ledger),
        counters_(counters),
        health_(health),
        residency_(residency),
        executor_(executor) {}

  void connect(std::weak_ptr<TouchTarget> target) { target_ = std::move(target); }

  /// Scopes nest. Returns which outermost one it is, for end(). @collective all ranks, outermost
  std::uint64_t begin(bool writeback);
  void end(std::uint64_t scope);
  /// The program is about to put something else into the place of a weight, or may do so.
  void expect_other(ModuleLayout::Index weight);
  /// Takes over what the program has put into the place of such weights. @throws Error
  /// kInvalidArgument
  void adopt();
  /// Throws what the last end() refused, once.
  void check();
  bool is_open() const { return depth_ > 0; }
  /// Whether operators may write weights.
  bool takes_writes() const { return depth_ > 0 && is_written_back_; }
  /// This rank's shard of `unit` is about to be written by others than this scope.
  /// @throws Error kInvalidArgument while one is open, which would show old weights, or lose new
  /// ones
  void check_takes_shards(int unit) const;
  /// After the group has recovered: there is none, and nothing is written back.
  void start_over();

 private:
  void show(int unit, const at::Tensor& whole);
  void adopt(int unit);
  void clear();

  const ModuleLayout& layout_;
  memory::Ledger& ledger_;
  Counters& counters_;
  Health& health_;
  Residency& residency_;
  Executor& executor_;
  std::weak_ptr<TouchTarget> target_;

  int depth_ = 0;
  std::uint64_t scope_ = 0;                    ///< counts the outermost ones
  bool is_written_back_ = false;               ///< at the end of the outermost one
  std::vector<ModuleLayout::Index> expected_;  ///< see expect_other()
  std::vector<at::Tensor> whole_;              ///< by unit
  /// By unit; null for one that is not cast.
  std::vector<std::unique_ptr<WeightViews>> views_;
  std::int64_t bytes_ = 0;
  std::exception_ptr refusal_;
};

}  // namespace fsdp::engine
