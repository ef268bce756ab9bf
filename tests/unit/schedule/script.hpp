// SPDX-License-Identifier: Apache-2.0
/// Drives a CheckedSchedule by hand and returns what it answers as text.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/checked_schedule.hpp"

namespace fsdp::test {

/// Each call returns the actions as to_string() writes them; at its end no rule may be broken.
class Script {
 public:
  using Units = std::vector<int>;

  explicit Script(const schedule::Config& config) : schedule_(config) {}
  ~Script() { EXPECT_EQ(schedule_.violation(), ""); }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  std::string forward(const Units& units) { return touch(units, schedule::Pass::kForward); }
  std::string backward(const Units& units) { return touch(units, schedule::Pass::kBackward); }
  std::string evaluate(const Units& units) { return touch(units, schedule::Pass::kEvaluation); }
  std::string touch(const Units& units, schedule::Pass pass) {
    return touch(units, pass, units.empty() ? 0 : static_cast<std::uint64_t>(units.front()));
  }
  std::string touch(const Units& units, schedule::Pass pass, std::uint64_t signature) {
    return schedule_.touch(units, pass, signature) ? last() : "refused";
  }
  std::string end(const Units& units) { return schedule_.release(units), last(); }
  std::string gradient(int unit) { return schedule_.gradient(unit), last(); }
  std::string complete(int unit) { return schedule_.gradients_complete(unit), last(); }
  std::string end_backward(bool flush = true) { return schedule_.end_backward(flush), last(); }
  std::string reshard() { return schedule_.reshard(), last(); }
  std::string abort() { return schedule_.abort_backward(), last(); }
  std::string invalidate(int unit) { return schedule_.invalidate(unit), last(); }
  std::string hold(int unit) { return schedule_.hold(unit), last(); }

  /// One operator for each entry; returns one line for each event that is answered by actions.
  std::string run(schedule::Pass pass, const std::vector<Units>& order) {
    static constexpr const char* kNames[] = {"forward", "evaluate", "backward"};
    std::string text;
    for (const Units& units : order) {
      std::string name;
      for (int unit : units) {
        name += " " + std::to_string(unit);
      }
      text += line(kNames[static_cast<int>(pass)] + name, touch(units, pass));
      text += line("end" + name, end(units));
      for (int unit : units) {
        if (pass == schedule::Pass::kBackward) {
          std::string actions = gradient(unit);
          const std::string more = complete(unit);
          actions += (actions.empty() || more.empty() ? "" : ", ") + more;
          text += line("gradients " + std::to_string(unit), actions);
        }
      }
    }
    return text;
  }

  /// A training step of operators that take one unit each: forward in this order, backward in
  /// reverse.
  std::string step(const Units& order) {
    const std::vector<Units> forward_order = each(order);
    const std::vector<Units> backward_order(forward_order.rbegin(), forward_order.rend());
    std::string text = "\n";
    text += run(schedule::Pass::kForward, forward_order);
    text += run(schedule::Pass::kBackward, backward_order);
    text += line("end of backward", end_backward());
    return text;
  }

  static std::vector<Units> each(const Units& order) {
    std::vector<Units> operators;
    for (int unit : order) {
      operators.push_back({unit});
    }
    return operators;
  }

  CheckedSchedule& checked() { return schedule_; }
  const schedule::Schedule& schedule() const { return schedule_.schedule(); }
  std::int64_t misses() const { return schedule().misses(); }
  int live() const { return schedule().live(); }

 private:
  std::string last() const { return to_string(schedule_.actions()); }
  static std::string line(const std::string& event, const std::string& actions) {
    return actions.empty() ? "" : event + ": " + actions + "\n";
  }

  CheckedSchedule schedule_;
};

}  // namespace fsdp::test
