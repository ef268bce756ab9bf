// SPDX-License-Identifier: Apache-2.0
/// Every sequence of events up to a length, against the rules of CheckedSchedule.
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "support/checked_schedule.hpp"

namespace fsdp::schedule {
namespace {

using test::CheckedSchedule;

/// A schedule and the operators that have begun and not ended, the innermost last.
struct State {
  CheckedSchedule schedule;
  std::vector<std::vector<int>> operators = {};
};

struct Event {
  std::string name;
  std::function<bool(State&)> apply;  ///< false when it cannot happen in this state
};

Event touch(const std::vector<int>& units, Pass pass) {
  static constexpr const char* kNames[] = {"forward", "evaluate", "backward"};
  return {kNames[static_cast<int>(pass)] + ::testing::PrintToString(units), [=](State& state) {
            const auto signature = static_cast<std::uint64_t>(units.front());
            const bool fits = state.schedule.touch(units, pass, signature);
            if (fits) {
              state.operators.push_back(units);
            }
            return fits;
          }};
}

Event end_operator(bool innermost) {
  return {innermost ? "end" : "end outermost", [=](State& state) {
            if (state.operators.empty() || (!innermost && state.operators.size() < 2)) {
              return false;
            }
            const auto which = innermost ? state.operators.end() - 1 : state.operators.begin();
            const std::vector<int> units = *which;
            state.operators.erase(which);
            state.schedule.release(units);
            return true;
          }};
}

template <class... Arguments>
Event call(const std::string& name, void (CheckedSchedule::*member)(Arguments...),
           std::type_identity_t<Arguments>... arguments) {
  return {name, [=](State& state) {
            (state.schedule.*member)(arguments...);
            return true;
          }};
}

/// Returns how many sequences were run; stops at the first that breaks a rule.
class Exploration {
 public:
  Exploration(const Config& config, const std::vector<Event>& events, int length)
      : events_(events) {
    explore({CheckedSchedule(config)}, length);
  }
  const std::string& failure() const { return failure_; }
  std::int64_t sequences() const { return sequences_; }

 private:
  void explore(const State& state, int length) {
    for (const Event& event : events_) {
      State next = state;
      const bool happened = event.apply(next);
      path_.push_back(&event);
      ++sequences_;
      if (!next.schedule.violation().empty()) {
        failure_ = next.schedule.violation() + "; after:";
        for (const Event* past : path_) {
          failure_ += " " + past->name + ";";
        }
      } else if (happened && length > 1) {
        explore(next, length - 1);
      }
      path_.pop_back();
      if (!failure_.empty()) {
        return;
      }
    }
  }

  const std::vector<Event>& events_;
  std::vector<const Event*> path_;
  std::int64_t sequences_ = 0;
  std::string failure_;
};

void expect_no_rule_broken(const Config& config, const std::vector<Event>& events, int length) {
  const Exploration exploration(config, events, length);
  EXPECT_EQ(exploration.failure(), "");
  // Most events are possible most of the time.
  std::int64_t half = 1;
  for (int i = 0; i < length; ++i) {
    half *= static_cast<std::int64_t>(events.size()) / 2;
  }
  EXPECT_GT(exploration.sequences(), half);
}

TEST(ScheduleModelTest, WeightsOfTwoUnits) {
  const std::vector<Event> events = {
      touch({0}, Pass::kForward),  touch({1}, Pass::kForward),
      touch({0}, Pass::kBackward), touch({1}, Pass::kBackward),
      end_operator(true),          call("end of backward", &CheckedSchedule::end_backward, true)};
  for (const Config& config : {Config{.units = 2, .prefetch = 0, .slots = 1},
                               Config{.units = 2, .prefetch = 1, .slots = 2}}) {
    expect_no_rule_broken(config, events, 7);
  }
}

TEST(ScheduleModelTest, WeightsOfThreeUnitsInEvaluation) {
  const std::vector<Event> events = {touch({0}, Pass::kEvaluation),
                                     touch({1}, Pass::kEvaluation),
                                     touch({2}, Pass::kEvaluation),
                                     touch({0, 2}, Pass::kEvaluation),
                                     end_operator(true),
                                     end_operator(false),
                                     call("reshard", &CheckedSchedule::reshard)};
  for (const Config& config :
       {Config{.units = 3, .prefetch = 1, .slots = 2},
        Config{.units = 3, .prefetch = 2, .slots = 2, .kept = {0}, .own_buffers = {0}}}) {
    expect_no_rule_broken(config, events, 6);
  }
}

TEST(ScheduleModelTest, GradientsOfTwoUnits) {
  std::vector<Event> events;
  for (int unit : {0, 1}) {
    const std::string name = " " + std::to_string(unit);
    events.push_back(call("gradient" + name, &CheckedSchedule::gradient, unit));
    events.push_back(call("complete" + name, &CheckedSchedule::gradients_complete, unit));
  }
  events.push_back(call("end of backward", &CheckedSchedule::end_backward, true));
  events.push_back(call("abort", &CheckedSchedule::abort_backward));
  for (const Config& config : {Config{.units = 2, .reduce_buffers = 1},
                               Config{.units = 2, .reduce_buffers = 1, .own_buffers = {1}}}) {
    expect_no_rule_broken(config, events, 7);
  }
}

TEST(ScheduleModelTest, GradientsOfThreeUnits) {
  std::vector<Event> events;
  for (int unit : {0, 1, 2}) {
    const std::string name = " " + std::to_string(unit);
    events.push_back(call("gradient" + name, &CheckedSchedule::gradient, unit));
    events.push_back(call("complete" + name, &CheckedSchedule::gradients_complete, unit));
  }
  events.push_back(call("end of backward", &CheckedSchedule::end_backward, true));
  events.push_back(call("end without flush", &CheckedSchedule::end_backward, false));
  for (const Config& config :
       {Config{.units = 3, .reduce_buffers = 1}, Config{.units = 3, .reduce_buffers = 2},
        Config{.units = 3, .reduce_buffers = 1, .own_buffers = {0}}}) {
    expect_no_rule_broken(config, events, 6);
  }
}

TEST(ScheduleModelTest, WeightsAndGradientsTogether) {
  const std::vector<Event> events = {touch({0}, Pass::kForward),
                                     touch({1}, Pass::kBackward),
                                     touch({0, 1}, Pass::kBackward),
                                     end_operator(true),
                                     call("gradient 0", &CheckedSchedule::gradient, 0),
                                     call("gradient 1", &CheckedSchedule::gradient, 1),
                                     call("complete 1", &CheckedSchedule::gradients_complete, 1),
                                     call("invalidate 0", &CheckedSchedule::invalidate, 0),
                                     call("end of backward", &CheckedSchedule::end_backward, true),
                                     call("abort", &CheckedSchedule::abort_backward)};
  const Config config{
      .units = 2, .prefetch = 1, .slots = 2, .reduce_buffers = 1, .kept = {1}, .own_buffers = {0}};
  expect_no_rule_broken(config, events, 6);
}

}  // namespace
}  // namespace fsdp::schedule
