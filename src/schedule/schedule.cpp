// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.hpp"

#include <algorithm>
#include <sstream>

#include "fsdp/base/error.hpp"

namespace fsdp::schedule {

namespace {
bool contains(std::span<const int> units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}
}  // namespace

Schedule::Schedule(const Config& config) : config_(config) {
  FSDP_CHECK(config.units >= 0, ErrorCode::kInvalidArgument, "there are ", config.units,
             " units, must be 0 or more");
  FSDP_CHECK(config.prefetch >= 0, ErrorCode::kInvalidArgument, "prefetch is ", config.prefetch,
             ", must be 0 or more");
  FSDP_CHECK(config.slots >= 1, ErrorCode::kInvalidArgument, "there are ", config.slots,
             " gather slots, at least 1 is needed");
  FSDP_CHECK(config.reduce_buffers >= 1, ErrorCode::kInvalidArgument, "there are ",
             config.reduce_buffers, " reduce buffers, at least 1 is needed");
  units_.resize(static_cast<std::size_t>(config.units));
  slots_.assign(static_cast<std::size_t>(config.slots), -1);
  buffers_.assign(static_cast<std::size_t>(config.reduce_buffers), -1);
  for (int unit : config.kept) {
    give_own(unit, &UnitState::own_slot, slots_);
  }
  for (int unit : config.own_buffers) {
    give_own(unit, &UnitState::own_buffer, buffers_);
  }
}

/// Adds a place to `places` that is this unit's alone, unless it has one.
void Schedule::give_own(int unit, int UnitState::* own, std::vector<int>& places) {
  FSDP_CHECK(unit >= 0 && unit < config_.units, ErrorCode::kInvalidArgument, "unit ", unit, " of ",
             config_.units, " was to have a slot or a buffer of its own");
  if (at(unit).*own < 0) {
    at(unit).*own = static_cast<int>(places.size());
    places.push_back(-1);
  }
}

const std::vector<Action>& Schedule::touch(std::span<const int> units, Pass pass,
                                           std::uint64_t signature) {
  actions_.clear();
  check_slots(units);
  const bool begins =
      !open_ ||                                                   //
      (pass == Pass::kBackward) != (pass_ == Pass::kBackward) ||  //
      (pass_ == Pass::kEvaluation && pass == Pass::kForward) ||   //
      (pass_ != Pass::kBackward && signature == first_signature_ && has_left_first_interval());
  if (begins) {
    begin_pass(pass, signature);
  }
  enter_interval(units);
  for (int unit : units) {
    ++at(unit).pins;
  }

  std::vector<int> soon = window(units, config_.prefetch);
  const std::size_t ahead = soon.size();
  add_turn(soon, config_.prefetch, units);
  for (int unit = 0; unit < config_.units; ++unit) {
    const bool wanted = contains(units, unit) || contains(soon, unit) || is_kept(unit);
    if (!wanted && at(unit).pins == 0) {
      free(unit);
    }
  }
  for (int unit : units) {
    start_gather(unit, units, soon);
  }
  for (int unit : std::span(soon).first(ahead)) {
    if (is_kept(unit) ||
        contains(std::span(slots_).first(static_cast<std::size_t>(config_.slots)), -1)) {
      start_gather(unit, units, soon);
    }
  }
  for (int unit : units) {
    wait_gather(unit);
  }
  return actions_;
}

const std::vector<Action>& Schedule::release(std::span<const int> units) {
  actions_.clear();
  for (int unit : units) {
    FSDP_ASSERT(at(unit).pins > 0, "unit ", unit, " is released without a touch");
    --at(unit).pins;
  }
  if (interval_has_ended(units)) {
    for (int unit : units) {
      if (at(unit).pins == 0 && !is_kept(unit) && !comes_again(unit)) {
        free(unit);
      }
    }
    const bool pass_ends = position_ + 1 == static_cast<int>(order(pass_).size());
    for (int unit = 0; pass_ends && pass_ == Pass::kEvaluation && unit < config_.units; ++unit) {
      if (is_kept(unit) && at(unit).pins == 0) {
        free(unit);
      }
    }
  }
  return actions_;
}

const std::vector<Action>& Schedule::reshard() {
  actions_.clear();
  if (open_ && pass_ != Pass::kBackward) {
    close_pass();
  }
  for (int unit = 0; unit < config_.units; ++unit) {
    if (at(unit).pins == 0) {
      free(unit);
    }
  }
  return actions_;
}

const std::vector<Action>& Schedule::invalidate(int unit) {
  actions_.clear();
  if (at(unit).pins == 0) {
    free(unit);
  }
  return actions_;
}

const std::vector<Action>& Schedule::hold(int unit) {
  actions_.clear();
  FSDP_CHECK(at(unit).pins == 0, ErrorCode::kInvalidArgument, "unit ", unit,
             " is in use by an operator of another thread");
  free(unit);
  at(unit).weights = Weights::kHeld;
  return actions_;
}

void Schedule::unhold(int unit) {
  FSDP_ASSERT(at(unit).weights == Weights::kHeld, "unit ", unit, " is not held");
  at(unit).weights = Weights::kSharded;
}

std::vector<std::vector<int>> Schedule::upcoming_run(std::span<const int> units, Pass pass) const {
  const std::vector<Interval>& known = orders_[static_cast<std::size_t>(pass)];
  const auto size = static_cast<int>(known.size());
  const int begin = open_ && pass_ == pass ? position_ + 1 : 0;
  std::vector<std::vector<int>> run;
  std::vector<int> missing(units.begin(), units.end());
  for (int step = 0; step < size; ++step) {
    const Interval& interval = known[static_cast<std::size_t>((begin + step) % size)];
    const bool is_inside =
        std::ranges::all_of(interval.units, [&](int unit) { return contains(units, unit); });
    if (!is_inside && !run.empty()) {
      break;
    }
    if (is_inside) {
      run.push_back(interval.units);
      std::erase_if(missing, [&](int unit) { return contains(interval.units, unit); });
    }
  }
  return missing.empty() ? run : std::vector<std::vector<int>>();
}

bool Schedule::is_current(int unit) const {
  return open_ && !recording_.empty() && contains(recording_.back().units, unit);
}

bool Schedule::is_unsharded(int unit) const {
  return at(unit).weights == Weights::kUnsharded || at(unit).weights == Weights::kHeld;
}

void Schedule::begin_pass(Pass pass, std::uint64_t signature) {
  close_pass();
  open_ = true;
  pass_ = pass;
  first_signature_ = signature;
  position_ = -1;
}

void Schedule::close_pass() {
  if (open_ && !recording_.empty()) {
    order(pass_) = std::move(recording_);
  }
  recording_.clear();
  open_ = false;
}

void Schedule::enter_interval(std::span<const int> units) {
  if (recording_.empty() || !std::ranges::equal(recording_.back().units, units)) {
    recording_.push_back({.units = {units.begin(), units.end()}});
    const std::vector<Interval>& known = order(pass_);
    const int size = static_cast<int>(known.size());
    int found = -1;
    for (int step = 1; step <= size && found < 0; ++step) {
      const int candidate = (position_ + step) % size;
      if (std::ranges::equal(known[static_cast<std::size_t>(candidate)].units, units)) {
        found = candidate;
      }
    }
    if (size > 0 && found != position_ + 1) {
      ++misses_;
    }
    position_ = found;
  }
  ++recording_.back().touches;
}

bool Schedule::has_left_first_interval() {
  // A model with one unit has no second interval: there, all its recorded touches have come.
  const std::vector<Interval>& known = order(pass_);
  return recording_.size() > 1 || (known.size() == 1 && position_ == 0 &&
                                   recording_.back().touches >= known.front().touches);
}

bool Schedule::interval_has_ended(std::span<const int> units) {
  if (!open_ || position_ < 0 || !std::ranges::equal(recording_.back().units, units)) {
    return false;
  }
  if (std::ranges::any_of(units, [&](int unit) { return at(unit).optional; })) {
    return false;
  }
  const std::vector<Interval>& known = order(pass_);
  const bool is_last = position_ + 1 == static_cast<int>(known.size());
  // The unit that is live when forward turns into backward is not gathered again.
  if (is_last && pass_ == Pass::kForward) {
    return false;
  }
  return recording_.back().touches >= known[static_cast<std::size_t>(position_)].touches;
}

/// Appends units of the recorded order of `pass` from `begin` on, each once and none of `but`,
/// until there are `count`.
void Schedule::append_next(std::vector<int>& found, int count, std::span<const int> but, Pass pass,
                           std::size_t begin) const {
  const std::vector<Interval>& known = orders_[static_cast<std::size_t>(pass)];
  for (std::size_t next = begin; next < known.size(); ++next) {
    for (int unit : known[next].units) {
      if (static_cast<int>(found.size()) >= count) {
        return;
      }
      if (!contains(but, unit) && !contains(found, unit)) {
        found.push_back(unit);
      }
    }
  }
}

/// Up to `count` units that this pass takes next, `current` left out.
std::vector<int> Schedule::window(std::span<const int> current, int count) const {
  std::vector<int> upcoming;
  if (position_ >= 0) {
    append_next(upcoming, count, current, pass_, static_cast<std::size_t>(position_) + 1);
  }
  return upcoming;
}

/// Fills up a window() with what backward takes first, where forward ends: that stays, and is not
/// gathered ahead.
void Schedule::add_turn(std::vector<int>& soon, int count, std::span<const int> current) const {
  if (position_ >= 0 && pass_ == Pass::kForward) {
    append_next(soon, count, current, Pass::kBackward, 0);
  }
}

/// Whether `unit`, whose interval has ended, can stay until it is needed again.
bool Schedule::comes_again(int unit) const {
  std::vector<int> soon = window({}, config_.prefetch + 1);
  add_turn(soon, config_.prefetch + 1, {});
  // An operator may share a unit with the next one, and then it stays even without prefetch.
  const std::vector<Interval>& known = orders_[static_cast<std::size_t>(pass_)];
  const auto next = static_cast<std::size_t>(position_) + 1;
  return (next < known.size() && contains(known[next].units, unit)) || contains(soon, unit);
}

void Schedule::check_slots(std::span<const int> units) {
  // What must be whole at once: the operator's units and those that operators still running use.
  int needed = 0;
  for (int unit = 0; unit < config_.units; ++unit) {
    const bool in_use = contains(units, unit) || at(unit).pins > 0;
    if (in_use && !is_kept(unit) && at(unit).weights != Weights::kHeld) {
      ++needed;
    }
  }
  FSDP_CHECK(needed <= config_.slots, ErrorCode::kInvalidArgument, "one operator needs ", needed,
             " units at once but there are ", config_.slots, " gather slots");
}

void Schedule::start_gather(int unit, std::span<const int> needed, std::span<const int> soon) {
  if (at(unit).weights != Weights::kSharded) {
    return;
  }
  int slot = -1;
  if (is_kept(unit)) {
    slot = at(unit).own_slot;
  } else {
    const auto ring = std::span(slots_).first(static_cast<std::size_t>(config_.slots));
    auto place = std::find(ring.begin(), ring.end(), -1);
    for (auto victim = soon.rbegin(); place == ring.end() && victim != soon.rend(); ++victim) {
      if (!is_kept(*victim) && at(*victim).pins == 0 && !contains(needed, *victim)) {
        free(*victim);
        place = std::find(ring.begin(), ring.end(), -1);
      }
    }
    FSDP_ASSERT(place != ring.end(), "no slot for unit ", unit);
    slot = static_cast<int>(place - ring.begin());
  }
  slots_[static_cast<std::size_t>(slot)] = unit;
  at(unit).slot = slot;
  at(unit).weights = Weights::kGathering;
  peak_live_ = std::max(peak_live_, ++live_);
  actions_.push_back({ActionKind::kStartGather, unit, slot});
}

void Schedule::wait_gather(int unit) {
  if (at(unit).weights == Weights::kGathering) {
    at(unit).weights = Weights::kUnsharded;
    actions_.push_back({ActionKind::kWaitGather, unit, at(unit).slot});
  }
}

void Schedule::free(int unit) {
  wait_gather(unit);
  if (at(unit).weights == Weights::kUnsharded) {
    actions_.push_back({ActionKind::kFree, unit, at(unit).slot});
    slots_[static_cast<std::size_t>(at(unit).slot)] = -1;
    at(unit).slot = -1;
    at(unit).weights = Weights::kSharded;
    --live_;
  }
}

}  // namespace fsdp::schedule
