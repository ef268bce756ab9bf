// SPDX-License-Identifier: Apache-2.0
/// The smallest executor of a Schedule: it has slots and buffers but nothing in them, and checks
/// every action against the rules that a real executor relies on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"

namespace fsdp::test {

/// A Schedule whose actions are carried out on a model of slots and buffers.
///
/// Checked on every action: a gather starts only in a free slot and is waited for before its unit
/// is used or freed; a pinned unit is not freed; a reduce buffer serves one unit; at most one
/// reduction is in flight. Checked after every event: what the schedule says of itself is what the
/// model has; units that an operator takes are whole; at most `prefetch` units besides those in
/// use are live; after backward nothing is gathered, and no gradient is left behind.
///
/// The first violation is kept in `violation()`; the caller asserts that it is empty. Copies are
/// independent.
class CheckedSchedule {
 public:
  using Action = schedule::Action;
  using Pass = schedule::Pass;

  explicit CheckedSchedule(const schedule::Config& config);

  /// Returns false when the schedule refuses because there are too few slots.
  bool touch(const std::vector<int>& units, Pass pass, std::uint64_t signature);
  void release(const std::vector<int>& units);
  void gradient(int unit);
  void gradients_complete(int unit);
  void end_backward(bool flush = true);
  void reshard();
  void abort_backward();
  void invalidate(int unit);
  void hold(int unit);
  void unhold(int unit);
  void set_trainable(int unit, bool trainable);

  const schedule::Schedule& schedule() const { return schedule_; }
  const std::string& violation() const { return violation_; }
  /// The actions of the last event.
  const std::vector<Action>& actions() const { return actions_; }
  bool is_held(int unit) const { return at(unit).weights == Weights::kHeld; }
  int gathers() const { return gathers_; }

 private:
  enum class Weights { kSharded, kGathering, kWhole, kHeld };
  struct Unit {
    Weights weights = Weights::kSharded;
    int slot = -1;
    int buffer = -1;
    int pins = 0;
    bool is_reducing = false;
    bool has_gradients = false;  ///< of which no reduction has been issued yet
    bool is_trainable = true;
    bool is_reduced = false;  ///< since the last backward ended
  };

  Unit& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  bool is_kept(int unit) const { return own_slot(unit) >= 0; }
  /// The place that is the unit's alone, -1 for one of the ring.
  int own_slot(int unit) const;
  int own_buffer(int unit) const;
  void require(bool condition, const char* rule, int unit = -1);
  void execute(const std::vector<Action>& actions);
  void execute(const Action& action);
  void check_event();
  void check_nothing_is_left();

  schedule::Config config_;
  schedule::Schedule schedule_;
  std::vector<Unit> units_;
  std::vector<int> slots_;
  std::vector<int> buffers_;
  std::vector<Action> actions_;
  int in_flight_ = 0;
  int gathers_ = 0;
  std::string violation_;
};

/// "start 0@1, wait 0@1, free 0@1, open 0@0, reduce 0@0, done 0@0", where @ is a slot or a buffer.
std::string to_string(const std::vector<schedule::Action>& actions);

}  // namespace fsdp::test
