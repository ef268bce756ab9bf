// SPDX-License-Identifier: Apache-2.0
#include "schedule/virtual_clock.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace fsdp::schedule {

namespace {

/// The executor of the virtual clock: a lane is the time at which it is next free.
class Clock {
 public:
  explicit Clock(const std::vector<UnitCost>& costs)
      : costs_(costs), gathered_(costs.size(), 0), reduced_(costs.size(), 0) {}

  void execute(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      const auto unit = static_cast<std::size_t>(action.unit);
      switch (action.kind) {
        case ActionKind::kStartGather:
          gather_lane_ = std::max(gather_lane_, now_) + costs_[unit].gather;
          gathered_[unit] = gather_lane_;
          ++step_.gathers;
          break;
        case ActionKind::kWaitGather: step_.exposed_gather += wait_until(gathered_[unit]); break;
        case ActionKind::kStartReduce:
          reduce_lane_ = std::max(reduce_lane_, now_) + costs_[unit].reduce;
          reduced_[unit] = reduce_lane_;
          ++step_.reduces;
          break;
        case ActionKind::kWaitReduce: step_.exposed_reduce += wait_until(reduced_[unit]); break;
        case ActionKind::kFree:
        case ActionKind::kOpenReduce: break;
      }
    }
  }

  void compute(double duration) {
    now_ += duration;
    step_.compute += duration;
  }

  StepTimes end_step(int peak_live) {
    step_.total = now_ - step_begin_;
    step_.peak_live = peak_live;
    step_begin_ = now_;
    return std::exchange(step_, {});
  }

 private:
  double wait_until(double time) {
    const double waited = std::max(0.0, time - now_);
    now_ += waited;
    return waited;
  }

  const std::vector<UnitCost>& costs_;
  std::vector<double> gathered_;
  std::vector<double> reduced_;
  double now_ = 0;
  double step_begin_ = 0;
  double gather_lane_ = 0;
  double reduce_lane_ = 0;
  StepTimes step_;
};

}  // namespace

std::vector<StepTimes> run_chain(const Config& config, const std::vector<UnitCost>& costs,
                                 int steps) {
  Schedule schedule(config);
  Clock clock(costs);
  std::vector<StepTimes> times;
  const int units = static_cast<int>(costs.size());
  for (int step = 0; step < steps; ++step) {
    for (int unit = 0; unit < units; ++unit) {
      clock.execute(
          schedule.touch(std::span(&unit, 1), Pass::kForward, static_cast<std::uint64_t>(unit)));
      clock.compute(costs[static_cast<std::size_t>(unit)].forward);
      clock.execute(schedule.release(std::span(&unit, 1)));
    }
    for (int unit = units - 1; unit >= 0; --unit) {
      clock.execute(
          schedule.touch(std::span(&unit, 1), Pass::kBackward, static_cast<std::uint64_t>(unit)));
      clock.compute(costs[static_cast<std::size_t>(unit)].backward);
      clock.execute(schedule.release(std::span(&unit, 1)));
      clock.execute(schedule.gradient(unit));
      clock.execute(schedule.gradients_complete(unit));
    }
    clock.execute(schedule.end_backward(true));
    times.push_back(clock.end_step(schedule.peak_live()));
  }
  return times;
}

}  // namespace fsdp::schedule
