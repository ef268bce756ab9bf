// SPDX-License-Identifier: Apache-2.0
/// Carries out the schedule: touches and gradients go in, and each action that comes out is done by
/// Residency, which has the weights, or by Gradients. It is apart from both because the schedule
/// orders gathers and reductions as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/executor/events.hpp"
#include "engine/executor/gradients.hpp"
#include "engine/executor/health.hpp"
#include "engine/executor/residency.hpp"
#include "engine/unit/module_buffers.hpp"
#include "engine/unit/module_layout.hpp"
#include "engine/unit/stream_uses.hpp"
#include "fsdp/base/error.hpp"
#include "schedule/schedule.hpp"

namespace fsdp::engine {

/// An operator that takes weights.
struct Taker {
  const char* op = "";
  std::uint64_t signature = 0;  ///< of the operator and its weights
};

/// *Thread safety*: under the engine's lock.
class Executor {
 public:
  /// All that is passed outlives it.
  Executor(const ModuleLayout& layout, Counters& counters, Health& health, const Events& events,
           Residency& residency, Gradients& gradients, ModuleBuffers& buffers);

  /// Before weights are taken outside of backward: looks for what changed since the last time.
  void begin_forward();
  /// Something may have changed: begin_forward() looks again.
  void expect_changes() { is_forward_checked_ = false; }
  bool expects_changes() const { return !is_forward_checked_; }
  /// Makes the units whole and pins them.
  void take(std::span<const int> units, schedule::Pass pass, const Taker& taker);
  /// Unpins them.
  void release(std::span<const int> units);

  /// A backward has begun.
  void begin_backward();
  /// Whether a gradient of the unit counts as a touch. Whether an operator of this backward takes
  /// an optional unit's weights depends on what ran in forward, which ranks that only take part
  /// cannot know: so it is always touched.
  bool is_touched_by_gradient(int unit) const {
    return layout_.at(unit).is_optional && !schedule_.is_current(layout_.at(unit).bundle);
  }
  /// A gradient is there.
  void gradient(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in);
  void end_backward();
  /// Clears what a backward that died left behind.
  void abort_backward();

  /// Frees all that is not in use.
  void reshard() { run(schedule_.reshard()); }
  /// Somebody else provides all weights, until unhold().
  void hold();
  void unhold();
  /// After the group has recovered: nothing is known, nothing gathered.
  void start_over();

  bool is_unsharded(int unit) const { return schedule_.is_unsharded(layout_.at(unit).bundle); }
  /// See NOTE [Taking part].
  std::vector<std::vector<int>> expected_run(std::span<const int> units, schedule::Pass pass) const;
  /// Touches that the recorded order did not predict.
  std::int64_t misses() const { return past_misses_ + schedule_.misses(); }

 private:
  static schedule::Schedule make_schedule(const ModuleLayout& layout);
  void run(const std::vector<schedule::Action>& actions);
  void refresh(int unit);
  void take_gathered(const std::vector<int>& bundles, std::span<const int> units,
                     schedule::Pass pass, const Taker& taker);
  void join_backward_streams();
  /// The bundles of these units that are gathered, ascending.
  std::vector<int> bundles_of(std::span<const int> units) const;
  void emit_reduced(trace::EventKind kind, const schedule::Action& action) const;
  [[noreturn]] void fail_for_slots(const Error& error, std::span<const int> units,
                                   std::size_t bundles, const char* op) const;

  const ModuleLayout& layout_;
  Counters& counters_;
  Health& health_;
  const Events& events_;
  Residency& residency_;
  Gradients& gradients_;
  ModuleBuffers& buffers_;
  schedule::Schedule schedule_;
  schedule::Pass pass_ = schedule::Pass::kForward;  ///< of the last touch
  StreamUses backward_streams_;                     ///< of the backward under way
  bool is_forward_checked_ = false;
  std::int64_t past_misses_ = 0;  ///< of schedules before this one
};

}  // namespace fsdp::engine
