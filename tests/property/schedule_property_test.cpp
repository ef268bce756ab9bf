// SPDX-License-Identifier: Apache-2.0
/// Random programs against the rules of CheckedSchedule. FSDP_PROPERTY_SEED and
/// FSDP_PROPERTY_CASES choose other ones; a failure prints the seed of its case, which as
/// FSDP_PROPERTY_SEED with one case repeats it.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/checked_schedule.hpp"
#include "support/draw.hpp"

namespace fsdp::schedule {
namespace {

using test::CheckedSchedule;
using test::from_environment;
using test::to_string;

class Random : public test::Draw {
 public:
  using Draw::Draw;
  std::vector<int> subset(int units, int size) {
    std::vector<int> chosen;
    for (int i = 0; i < size; ++i) {
      chosen.push_back(between(0, units - 1));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    return chosen;
  }
};

Config random_config(Random& random) {
  Config config;
  config.units = random.between(1, 6);
  if (random.one_in(2)) {  // as a root: its gradients come all through backward
    const int root = random.between(0, config.units - 1);
    config.own_buffers.push_back(root);
    if (random.one_in(2)) {
      config.kept.push_back(root);
    }
  }
  config.prefetch = random.between(0, 3);
  config.slots = random.between(1, 5);
  config.reduce_buffers = random.between(1, 3);
  for (int unit = 0; unit < config.units; ++unit) {
    if (random.one_in(5)) {
      config.kept.push_back(unit);
    }
    if (random.one_in(5)) {
      config.own_buffers.push_back(unit);
    }
  }
  return config;
}

std::string describe(const std::vector<int>& units) { return ::testing::PrintToString(units); }

/// Two schedules that hear the same events, except that only the first hears the touches which are
/// refused: if those changed anything, the two would drift apart.
class Program {
 public:
  explicit Program(std::uint64_t seed)
      : random_(seed), config_(random_config(random_)), first_(config_), second_(config_) {}

  void run() {
    const int events = random_.between(20, 120);
    for (int i = 0; i < events && failure().empty(); ++i) {
      event();
    }
    while (!operators_.empty() && failure().empty()) {
      end_operator(operators_.size() - 1);
    }
    if (failure().empty()) {
      log_ += "end_backward\n";
      both([](CheckedSchedule& schedule) { schedule.end_backward(true); });
    }
  }

  std::string failure() const {
    if (!first_.violation().empty()) {
      return first_.violation();
    }
    return drift_;
  }
  const std::string& log() const { return log_; }
  int refusals() const { return refusals_; }
  std::int64_t misses() const { return first_.schedule().misses(); }
  std::string describe_config() const {
    return "units " + std::to_string(config_.units) + ", prefetch " +
           std::to_string(config_.prefetch) + ", slots " + std::to_string(config_.slots) +
           " and of " + describe(config_.kept) + ", buffers " +
           std::to_string(config_.reduce_buffers) + " and of " + describe(config_.own_buffers);
  }

 private:
  template <class Event>
  void both(const Event& event) {
    event(first_);
    event(second_);
    if (first_.actions() != second_.actions()) {
      drift_ = "the same events were answered by: " + to_string(first_.actions()) +
               "; and by: " + to_string(second_.actions());
    }
  }

  void event() {
    const int unit = random_.between(0, config_.units - 1);
    const int kind = random_.between(0, 99);
    if (kind < 35) {
      begin_operator();
    } else if (kind < 65) {
      if (!operators_.empty()) {
        // Mostly the innermost, but threads end in any order.
        const int last = static_cast<int>(operators_.size()) - 1;
        end_operator(static_cast<std::size_t>(random_.one_in(3) ? random_.between(0, last) : last));
      }
    } else if (kind < 78) {
      log_ += "gradient " + std::to_string(unit) + "\n";
      both([&](CheckedSchedule& schedule) { schedule.gradient(unit); });
    } else if (kind < 85) {
      log_ += "gradients_complete " + std::to_string(unit) + "\n";
      both([&](CheckedSchedule& schedule) { schedule.gradients_complete(unit); });
    } else if (kind < 91) {
      const bool flush = !random_.one_in(4);
      log_ += flush ? "end_backward\n" : "end_backward without flush\n";
      both([&](CheckedSchedule& schedule) { schedule.end_backward(flush); });
      next_pass();
    } else if (kind < 93) {
      log_ += "reshard\n";
      both([](CheckedSchedule& schedule) { schedule.reshard(); });
      next_pass();
    } else if (kind < 94) {
      log_ += "abort_backward\n";
      both([](CheckedSchedule& schedule) { schedule.abort_backward(); });
      next_pass();
    } else if (kind < 96) {
      log_ += "invalidate " + std::to_string(unit) + "\n";
      both([&](CheckedSchedule& schedule) { schedule.invalidate(unit); });
    } else if (kind < 98) {
      if (!first_.schedule().is_pinned(unit)) {
        const bool held = first_.is_held(unit);
        log_ += (held ? "unhold " : "hold ") + std::to_string(unit) + "\n";
        both(
            [&](CheckedSchedule& schedule) { held ? schedule.unhold(unit) : schedule.hold(unit); });
      }
    } else {
      const bool trainable = random_.one_in(2);
      log_ += "set_trainable " + std::to_string(unit) + (trainable ? " yes\n" : " no\n");
      both([&](CheckedSchedule& schedule) { schedule.set_trainable(unit, trainable); });
    }
  }

  void next_pass() {
    pass_ = static_cast<Pass>(random_.between(0, 2));
    place_ = 0;
  }

  void begin_operator() {
    if (random_.one_in(12)) {
      next_pass();
    }
    // Half of the touches follow a habit, so that recorded orders are met as well as missed.
    std::vector<int> units;
    if (random_.one_in(2)) {
      units = {pass_ == Pass::kBackward ? (config_.units * 8 - 1 - place_) % config_.units
                                        : place_ % config_.units};
    } else {
      units = random_.subset(config_.units, random_.between(1, 3));
    }
    const auto signature = static_cast<std::uint64_t>(place_);
    place_ = (place_ + 1) % (2 * config_.units);
    log_ += "touch " + describe(units) + " pass " + std::to_string(static_cast<int>(pass_)) +
            " signature " + std::to_string(signature) + "\n";
    if (!first_.touch(units, pass_, signature)) {
      log_ += "  refused\n";
      ++refusals_;
      return;
    }
    if (!second_.touch(units, pass_, signature) || first_.actions() != second_.actions()) {
      drift_ = "a refused touch has changed something, or the same events differ: " +
               to_string(first_.actions()) + "; and: " + to_string(second_.actions());
    }
    operators_.push_back(units);
  }

  void end_operator(std::size_t index) {
    const std::vector<int> units = operators_[index];
    operators_.erase(operators_.begin() + static_cast<std::ptrdiff_t>(index));
    log_ += "release " + describe(units) + "\n";
    both([&](CheckedSchedule& schedule) { schedule.release(units); });
  }

  Random random_;
  Config config_;
  CheckedSchedule first_;
  CheckedSchedule second_;
  std::vector<std::vector<int>> operators_;  ///< that have begun and not ended
  Pass pass_ = Pass::kForward;
  int place_ = 0;
  int refusals_ = 0;
  std::string log_;
  std::string drift_;
};

class SchedulePropertyTest : public ::testing::Test {
 protected:
  std::uint64_t seed_ = from_environment("FSDP_PROPERTY_SEED", 20240607);
  std::uint64_t cases_ = from_environment("FSDP_PROPERTY_CASES", 4000);

  void SetUp() override {
    std::printf("FSDP_PROPERTY_SEED=%llu FSDP_PROPERTY_CASES=%llu\n",
                static_cast<unsigned long long>(seed_), static_cast<unsigned long long>(cases_));
  }
};

TEST_F(SchedulePropertyTest, RandomProgramsBreakNoRuleAndSameEventsGetSameActions) {
  std::int64_t refusals = 0;
  std::int64_t misses = 0;
  for (std::uint64_t seed = seed_; seed < seed_ + cases_; ++seed) {
    Program program(seed);
    program.run();
    refusals += program.refusals();
    misses += program.misses();
    ASSERT_EQ(program.failure(), "") << "FSDP_PROPERTY_SEED=" << seed << " FSDP_PROPERTY_CASES=1\n"
                                     << program.describe_config() << "\n"
                                     << program.log();
  }
  if (cases_ >= 1000) {
    EXPECT_GT(refusals, 0) << "no program ran out of slots";
    EXPECT_GT(misses, 0) << "no program missed";
  }
}

/// A training step whose operators take random units, each once: forward, backward in reverse.
std::vector<std::string> training_step(CheckedSchedule& schedule,
                                       const std::vector<std::vector<int>>& operators) {
  std::vector<std::string> answers;
  const auto note = [&] { answers.push_back(to_string(schedule.actions())); };
  const auto run = [&](std::size_t i, Pass pass) {
    schedule.touch(operators[i], pass, i);
    note();
    schedule.release(operators[i]);
    note();
  };
  for (std::size_t i = 0; i < operators.size(); ++i) {
    run(i, Pass::kForward);
  }
  for (std::size_t i = operators.size(); i-- > 0;) {
    run(i, Pass::kBackward);
    for (int unit : operators[i]) {
      schedule.gradient(unit);
      note();
    }
  }
  schedule.end_backward();
  note();
  return answers;
}

TEST_F(SchedulePropertyTest, AProgramThatRepeatsItselfIsPredictedFromItsSecondStepOn) {
  for (std::uint64_t seed = seed_; seed < seed_ + cases_ / 4; ++seed) {
    SCOPED_TRACE("FSDP_PROPERTY_SEED=" + std::to_string(seed));
    Random random(seed);
    Config config = random_config(random);
    const int largest = random.between(1, 3);
    config.slots = std::max(config.slots, largest);
    std::vector<std::vector<int>> operators;
    const int count = random.between(1, 20);
    for (int i = 0; i < count; ++i) {
      operators.push_back(random.subset(config.units, random.between(1, largest)));
    }
    CheckedSchedule schedule(config);
    training_step(schedule, operators);
    const int first_gathers = schedule.gathers();
    const std::vector<std::string> second = training_step(schedule, operators);
    EXPECT_EQ(training_step(schedule, operators), second);
    EXPECT_EQ(schedule.schedule().misses(), 0);
    EXPECT_EQ(schedule.violation(), "");
    if (largest == 1 && config.slots > config.prefetch) {
      // The prediction only moves gathers forward, and never fetches what is freed unused.
      EXPECT_LE(schedule.gathers(), 3 * first_gathers);
    }
    if (HasFailure()) {
      return;
    }
  }
}

/// The units in the order in which they are reduced.
std::vector<int> reduced(const std::vector<Action>& actions) {
  std::vector<int> units;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kStartReduce) {
      units.push_back(action.unit);
    }
  }
  return units;
}

TEST_F(SchedulePropertyTest, RanksWithDifferentGradientsFlushInTheSameOrder) {
  for (std::uint64_t seed = seed_; seed < seed_ + cases_ / 4; ++seed) {
    SCOPED_TRACE("FSDP_PROPERTY_SEED=" + std::to_string(seed));
    Random random(seed);
    const Config config = random_config(random);
    std::vector<int> all(static_cast<std::size_t>(config.units));
    for (int unit = 0; unit < config.units; ++unit) {
      all[static_cast<std::size_t>(unit)] = unit;
    }
    CheckedSchedule schedule(config);
    for (int backward = 0; backward < 3; ++backward) {
      // One buffer stays free of them: see end_backward().
      for (int unit : random.subset(config.units, config.reduce_buffers - 1)) {
        schedule.gradient(unit);
      }
      schedule.end_backward();
      ASSERT_EQ(reduced(schedule.actions()), all);
    }
    ASSERT_EQ(schedule.violation(), "");
  }
}

}  // namespace
}  // namespace fsdp::schedule
