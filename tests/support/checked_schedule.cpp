// SPDX-License-Identifier: Apache-2.0
#include "support/checked_schedule.hpp"

#include <algorithm>

#include "fsdp/base/error.hpp"

namespace fsdp::test {

using schedule::Action;
using schedule::ActionKind;

namespace {

/// Units with a place of their own, in the order of their places.
std::vector<int> distinct(const std::vector<int>& listed) {
  std::vector<int> units;
  for (int unit : listed) {
    if (std::ranges::find(units, unit) == units.end()) {
      units.push_back(unit);
    }
  }
  return units;
}

int place_of(int unit, const std::vector<int>& owners, int ring) {
  const auto found = std::ranges::find(owners, unit);
  return found == owners.end() ? -1 : ring + static_cast<int>(found - owners.begin());
}

}  // namespace

int CheckedSchedule::own_slot(int unit) const {
  return place_of(unit, distinct(config_.kept), config_.slots);
}

int CheckedSchedule::own_buffer(int unit) const {
  return place_of(unit, distinct(config_.own_buffers), config_.reduce_buffers);
}

CheckedSchedule::CheckedSchedule(const schedule::Config& config)
    : config_(config),
      schedule_(config),
      units_(static_cast<std::size_t>(config.units)),
      slots_(static_cast<std::size_t>(config.slots) + distinct(config.kept).size(), -1),
      buffers_(
          static_cast<std::size_t>(config.reduce_buffers) + distinct(config.own_buffers).size(),
          -1) {}

bool CheckedSchedule::touch(const std::vector<int>& units, Pass pass, std::uint64_t signature) {
  actions_.clear();
  const std::vector<Action>* actions = nullptr;
  try {
    actions = &schedule_.touch(units, pass, signature);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kInvalidArgument, "a refused touch is an invalid argument");
    check_event();
    return false;
  }
  for (int unit : units) {
    ++at(unit).pins;
  }
  execute(*actions);
  for (int unit : units) {
    const Weights weights = at(unit).weights;
    require(weights == Weights::kWhole || weights == Weights::kHeld, "a touched unit is whole",
            unit);
  }
  int ahead = 0;
  for (int unit = 0; unit < config_.units; ++unit) {
    ahead += at(unit).slot >= 0 && at(unit).pins == 0 && !is_kept(unit) ? 1 : 0;
  }
  require(ahead <= config_.prefetch, "at most `prefetch` units are live besides those in use");
  check_event();
  return true;
}

void CheckedSchedule::release(const std::vector<int>& units) {
  for (int unit : units) {
    --at(unit).pins;
  }
  execute(schedule_.release(units));
  check_event();
}

void CheckedSchedule::gradient(int unit) {
  at(unit).has_gradients = true;
  const std::vector<Action>& actions = schedule_.gradient(unit);
  execute(actions);
  require(at(unit).buffer >= 0 && !at(unit).is_reducing, "a gradient has an open buffer", unit);
  require(at(unit).has_gradients, "a gradient is not reduced before it is in the buffer", unit);
  check_event();
}

void CheckedSchedule::gradients_complete(int unit) {
  execute(schedule_.gradients_complete(unit));
  require(!at(unit).has_gradients, "complete gradients are reduced", unit);
  check_event();
}

void CheckedSchedule::end_backward(bool flush) {
  execute(schedule_.end_backward(flush));
  check_nothing_is_left();
  for (int unit = 0; flush && unit < config_.units; ++unit) {
    require(at(unit).buffer < 0 && !at(unit).has_gradients, "a flush leaves no gradient", unit);
    require(at(unit).is_reduced || !at(unit).is_trainable, "a flush reduces every unit", unit);
  }
  for (Unit& unit : units_) {
    unit.is_reduced = false;
  }
  check_event();
}

void CheckedSchedule::reshard() {
  execute(schedule_.reshard());
  for (int unit = 0; unit < config_.units; ++unit) {
    require(at(unit).slot < 0 || at(unit).pins > 0, "reshard frees", unit);
  }
  check_event();
}

void CheckedSchedule::abort_backward() {
  execute(schedule_.abort_backward());
  check_nothing_is_left();
  for (Unit& unit : units_) {
    if (unit.buffer >= 0) {
      buffers_[static_cast<std::size_t>(unit.buffer)] = -1;
      unit.buffer = -1;
    }
    unit.has_gradients = false;
    unit.is_reduced = false;
  }
  check_event();
}

void CheckedSchedule::invalidate(int unit) {
  execute(schedule_.invalidate(unit));
  require(at(unit).slot < 0 || at(unit).pins > 0, "a stale unit is freed", unit);
  check_event();
}

void CheckedSchedule::hold(int unit) {
  execute(schedule_.hold(unit));
  require(at(unit).weights == Weights::kSharded, "a held unit has no slot", unit);
  at(unit).weights = Weights::kHeld;
  check_event();
}

void CheckedSchedule::unhold(int unit) {
  actions_.clear();
  schedule_.unhold(unit);
  at(unit).weights = Weights::kSharded;
  check_event();
}

void CheckedSchedule::set_trainable(int unit, bool trainable) {
  actions_.clear();
  schedule_.set_trainable(unit, trainable);
  at(unit).is_trainable = trainable;
}

void CheckedSchedule::require(bool condition, const char* rule, int unit) {
  if (!condition && violation_.empty()) {
    violation_ = std::string("broken rule: ") + rule;
    if (unit >= 0) {
      violation_ += "; unit " + std::to_string(unit);
    }
    violation_ += "; actions of the event: " + to_string(actions_);
  }
}

void CheckedSchedule::execute(const std::vector<Action>& actions) {
  actions_ = actions;
  for (const Action& action : actions_) {
    execute(action);
  }
}

void CheckedSchedule::execute(const Action& action) {
  Unit& unit = at(action.unit);
  const auto place = static_cast<std::size_t>(action.slot);
  switch (action.kind) {
    case ActionKind::kStartGather: {
      require(unit.weights == Weights::kSharded, "a gather starts from shards", action.unit);
      require(place < slots_.size() && slots_[place] == -1, "a gather starts in a free slot",
              action.unit);
      const int own = own_slot(action.unit);
      require(own < 0 ? action.slot < config_.slots : action.slot == own,
              "a kept unit goes to its own slot, another to the ring", action.unit);
      slots_[place] = action.unit;
      unit.slot = action.slot;
      unit.weights = Weights::kGathering;
      ++gathers_;
      break;
    }
    case ActionKind::kWaitGather:
      require(unit.weights == Weights::kGathering && unit.slot == action.slot,
              "a wait follows its start", action.unit);
      unit.weights = Weights::kWhole;
      break;
    case ActionKind::kFree:
      require(unit.weights == Weights::kWhole && unit.slot == action.slot,
              "a free follows its wait", action.unit);
      require(unit.pins == 0, "a pinned unit is not freed", action.unit);
      slots_[place] = -1;
      unit.slot = -1;
      unit.weights = Weights::kSharded;
      break;
    case ActionKind::kOpenReduce: {
      require(unit.buffer == -1, "a unit collects in one buffer", action.unit);
      require(place < buffers_.size() && buffers_[place] == -1, "a free buffer is opened",
              action.unit);
      const int own = own_buffer(action.unit);
      require(own < 0 ? action.slot < config_.reduce_buffers : action.slot == own,
              "a unit with a buffer of its own takes that, another one of the ring", action.unit);
      buffers_[place] = action.unit;
      unit.buffer = action.slot;
      break;
    }
    case ActionKind::kStartReduce:
      require(unit.buffer == action.slot && !unit.is_reducing, "a reduction follows its opening",
              action.unit);
      require(++in_flight_ == 1, "one reduction is in flight", action.unit);
      unit.is_reducing = true;
      unit.has_gradients = false;
      unit.is_reduced = true;
      break;
    case ActionKind::kWaitReduce:
      require(unit.buffer == action.slot && unit.is_reducing, "a reduction is waited for once",
              action.unit);
      --in_flight_;
      unit.is_reducing = false;
      buffers_[place] = -1;
      unit.buffer = -1;
      break;
  }
}

void CheckedSchedule::check_event() {
  int live = 0;
  for (int unit = 0; unit < config_.units; ++unit) {
    const Unit& model = at(unit);
    live += model.slot >= 0 ? 1 : 0;
    require(schedule_.is_unsharded(unit) ==
                (model.weights == Weights::kWhole || model.weights == Weights::kHeld),
            "is_unsharded", unit);
    require(schedule_.is_pinned(unit) == (model.pins > 0), "is_pinned", unit);
    require(schedule_.is_collecting(unit) == (model.buffer >= 0 && !model.is_reducing),
            "is_collecting", unit);
  }
  require(schedule_.live() == live, "live");
  require(schedule_.peak_live() >= live, "peak_live");
  require(live <= static_cast<int>(slots_.size()), "no more units are live than there are slots");
}

void CheckedSchedule::check_nothing_is_left() {
  require(in_flight_ == 0, "no reduction outlives backward");
  for (int unit = 0; unit < config_.units; ++unit) {
    require(at(unit).slot < 0 || at(unit).pins > 0, "nothing is gathered after backward", unit);
  }
  require(!schedule_.in_backward(), "the end of backward closes it");
}

std::string to_string(const std::vector<Action>& actions) {
  static constexpr const char* kNames[] = {"start", "wait", "free", "open", "reduce", "done"};
  std::string text;
  for (const Action& action : actions) {
    text += text.empty() ? "" : ", ";
    text += std::string(kNames[static_cast<int>(action.kind)]) + " " + std::to_string(action.unit) +
            "@" + std::to_string(action.slot);
  }
  return text;
}

}  // namespace fsdp::test
