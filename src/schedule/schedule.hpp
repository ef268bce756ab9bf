// SPDX-License-Identifier: Apache-2.0
/// When to gather, wait, free and reduce: a pure state machine. It hears which units operators
/// touch and which gradients arrive, and answers with actions for an executor to carry out in
/// order. No tensors, no I/O, no clock: the live engine, the virtual clock and the unit tests run
/// this same code. Because its decisions depend on the order of events alone, and never on how long
/// anything takes, ranks that run the same program issue the same collectives in the same order.
///
/// A unit's weights:
///
///                     touch, prefetch              wait
///     kSharded --------------------> kGathering ---------> kUnsharded
///        ^   \                           |                   |
///        |    \ hold                     | wait, free        | free: the interval ended,
///        |     v                         |                   | or another unit was touched
///        |    kHeld                      v                   v
///        +------+------------------------+-------------------+
///
/// A unit's gradients: kNone -> kCollecting (a reduce buffer is taken at the first gradient) ->
/// kReducing (all have arrived, or backward ended) -> kNone. One reduction is in flight at a time:
/// the next one is issued when the previous one has been waited for, so that transports need one
/// staging buffer, whatever the number of reduce buffers.
///
/// Vocabulary. An *interval* is a maximal run of touches of the same set of units; a *pass* is one
/// forward, one evaluation or one backward. The intervals of a pass are recorded; the next pass of
/// that kind is predicted from them: what to prefetch, and at which touch an interval ends, so that
/// its units can be freed right there, except for those that come again before their slot is
/// needed: the last units of forward are the first of backward. The prediction is a hint: a miss
/// costs a gather, never correctness.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace fsdp::schedule {

/// Each kind has a recorded order of its own.
enum class Pass { kForward, kEvaluation, kBackward };

/// The steps that an executor takes; each names the unit and its slot or buffer.
enum class ActionKind {
  kStartGather,  ///< issue the all-gather of `unit` into `slot`
  kWaitGather,   ///< wait for it; the unit's weights are whole from here on
  kFree,         ///< the unit's weights are gone; `slot` is free
  kOpenReduce,   ///< collect gradients of `unit` in reduce buffer `slot` from here on
  kStartReduce,  ///< issue the reduce-scatter of that buffer; gradients that did not come are zero
  kWaitReduce,   ///< wait for it; the buffer is free
};

/// What the executor has to do next.
struct Action {
  ActionKind kind;
  int unit = -1;
  int slot = -1;
  bool operator==(const Action&) const = default;
};

/// What a schedule decides with: integers only.
struct Config {
  int units = 0;           ///< number of units; they are numbered from 0
  int prefetch = 1;        ///< how many units may be gathered ahead
  int slots = 2;           ///< in the ring that all but the kept units share
  int reduce_buffers = 2;  ///< in the ring that all but those of `own_buffers` share
  /// Units that have a slot of their own and stay until backward or evaluation ends; their slots
  /// come after the ring's, in this order.
  std::vector<int> kept = {};
  /// Units that have a reduce buffer of their own, because their gradients come all through
  /// backward; their buffers come after the ring's, in this order.
  std::vector<int> own_buffers = {};
};

/// The state machine.
///
/// *Invariants*: at most `slots` units (and the kept ones) are gathering or unsharded; a pinned
/// unit is never freed; each buffer serves one unit; at most one reduction is in flight. *Thread
/// safety*: none; the engine holds a lock. *Example*:
///
///     for (const Action& action : schedule.touch(units, Pass::kForward, signature)) { ... }
///     // run the operator
///     for (const Action& action : schedule.release(units)) { ... }
class Schedule {
 public:
  /// @throws Error kInvalidArgument for a kept unit or one with a buffer of its own that is outside
  /// of the units, no slot or no reduce buffer
  explicit Schedule(const Config& config);

  /// An operator is about to take weights of `units` (ascending, no duplicates): pins them and says
  /// what to do so that they are whole. `signature` identifies the operator and its weight: when
  /// the first one of a pass comes again, a new pass begins (nothing else marks the end of an
  /// evaluation). The result is valid until the next call.
  /// @throws Error kInvalidArgument when more units are needed at once than there are slots; then
  /// nothing has changed
  const std::vector<Action>& touch(std::span<const int> units, Pass pass, std::uint64_t signature);

  /// That operator has ended: unpins.
  const std::vector<Action>& release(std::span<const int> units);

  /// A gradient of `unit` is there; opens a reduce buffer if none is open.
  const std::vector<Action>& gradient(int unit);
  /// All gradients of `unit` are there.
  const std::vector<Action>& gradients_complete(int unit);
  /// The outermost backward has ended, and the pass with it. With `flush`, every trainable unit
  /// that was not reduced is reduced now, in unit order, so that all ranks agree on the collectives
  /// whatever was used; a unit that finds all buffers collecting makes the oldest of those go
  /// first. Without, units go on collecting.
  const std::vector<Action>& end_backward(bool flush);

  /// Frees everything that is not pinned or held, and ends a forward or evaluation under way: what
  /// it did so far is its recorded order.
  const std::vector<Action>& reshard();
  /// A backward died by an exception: reductions in flight are waited for, collected gradients are
  /// dropped, everything not pinned or held is freed, and the pass under way is forgotten.
  const std::vector<Action>& abort_backward();

  /// The unit's shards changed: a gathered copy is stale. Frees it unless pinned.
  const std::vector<Action>& invalidate(int unit);
  /// Takes a unit out of the slots for as long as somebody else provides its weights.
  /// @throws Error kInvalidArgument when it is pinned
  const std::vector<Action>& hold(int unit);
  void unhold(int unit);

  void set_trainable(int unit, bool trainable);
  /// Ranks may differ in how often operators touch this unit (some leave it out and only take part
  /// in its collectives), so the number of touches says nothing about where its interval ends: it
  /// is freed at the next unit's touch.
  void set_optional(int unit) { at(unit).optional = true; }

  /// The next run of intervals in the recorded order of `pass` that take no units but these; empty
  /// unless it has all of them.
  std::vector<std::vector<int>> upcoming_run(std::span<const int> units, Pass pass) const;

  bool is_unsharded(int unit) const;
  bool is_pinned(int unit) const { return at(unit).pins > 0; }
  /// For tests and a planner, as in_backward() is.
  bool is_collecting(int unit) const;
  /// Whether the interval under way takes `unit`.
  bool is_current(int unit) const;
  bool in_backward() const { return open_ && pass_ == Pass::kBackward; }
  /// Touches that opened an interval which the recorded order did not have in that place.
  std::int64_t misses() const { return misses_; }
  /// Units occupying slots now, and the most there ever were (kept ones included): for the virtual
  /// clock, hence for a planner.
  int live() const { return live_; }
  int peak_live() const { return peak_live_; }

 private:
  enum class Weights { kSharded, kGathering, kUnsharded, kHeld };
  enum class Gradients { kNone, kCollecting, kReducing };
  struct UnitState {
    Weights weights = Weights::kSharded;
    Gradients gradients = Gradients::kNone;
    int slot = -1;
    int buffer = -1;
    int own_slot = -1;    ///< of a kept unit
    int own_buffer = -1;  ///< -1: one of the ring
    int pins = 0;
    bool trainable = true;
    bool optional = false;
    bool reduced = false;  ///< since the last backward ended
  };
  struct Interval {
    std::vector<int> units;
    int touches = 0;
  };

  UnitState& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  const UnitState& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  std::vector<Interval>& order(Pass pass) { return orders_[static_cast<std::size_t>(pass)]; }
  bool is_kept(int unit) const { return at(unit).own_slot >= 0; }

  void give_own(int unit, int UnitState::* own, std::vector<int>& places);
  void begin_pass(Pass pass, std::uint64_t signature);
  void close_pass();
  void enter_interval(std::span<const int> units);
  void append_next(std::vector<int>& found, int count, std::span<const int> but, Pass pass,
                   std::size_t begin) const;
  std::vector<int> window(std::span<const int> current, int count) const;
  void add_turn(std::vector<int>& soon, int count, std::span<const int> current) const;
  bool comes_again(int unit) const;
  void check_slots(std::span<const int> units);
  void start_gather(int unit, std::span<const int> needed, std::span<const int> soon);
  void wait_gather(int unit);
  void free(int unit);
  bool has_left_first_interval();
  bool interval_has_ended(std::span<const int> units);
  void forget_reductions();
  int take_buffer(int unit);
  void start_reduce(int unit);
  void wait_reduce(int unit);

  Config config_;
  std::vector<UnitState> units_;
  std::vector<int> slots_;    ///< unit in each slot, -1 when free; the kept units' come last
  std::vector<int> buffers_;  ///< unit in each reduce buffer; those of one unit come last
  std::deque<int> reducing_;  ///< in the order in which they were issued
  std::deque<int> collecting_;

  bool open_ = false;  ///< a pass is under way
  Pass pass_ = Pass::kForward;
  std::uint64_t first_signature_ = 0;
  std::vector<Interval> recording_;
  std::array<std::vector<Interval>, 3> orders_;
  int position_ = -1;  ///< of the current interval in the recorded order, -1 when lost
  std::int64_t misses_ = 0;
  int live_ = 0;
  int peak_live_ = 0;
  std::vector<Action> actions_;
};

}  // namespace fsdp::schedule
