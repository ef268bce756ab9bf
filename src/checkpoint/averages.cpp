// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/optim/ema.hpp"

namespace fsdp::checkpoint {
namespace {

constexpr const char* kState = "ema";

class WithAverages : public OptimizerState {
 public:
  WithAverages(std::unique_ptr<OptimizerState> state, optim::Ema& ema)
      : state_(std::move(state)), ema_(ema) {}

  std::string kind() const override { return state_ != nullptr ? state_->kind() : "none"; }
  std::vector<StateShard> shards() const override {
    std::vector<StateShard> shards;
    if (state_ != nullptr) {
      shards = state_->shards();
    }
    for (const optim::NamedAverage& average : ema_.averages()) {
      shards.push_back({average.name, kState, average.average});
    }
    return shards;
  }
  std::map<std::string, std::int64_t> steps() const override {
    return state_ != nullptr ? state_->steps() : std::map<std::string, std::int64_t>();
  }
  std::map<std::string, archive::Values> options() const override {
    return state_ != nullptr ? state_->options() : std::map<std::string, archive::Values>();
  }
  void allocate(const StoredStates& stored) override {
    std::vector<std::string> averaged;
    StoredStates others = stored;
    for (const auto& [parameter, states] : stored) {
      if (states.contains(kState)) {
        averaged.push_back(parameter);
        others[parameter].erase(kState);
      }
    }
    std::erase_if(others, [](const auto& of) { return of.second.empty(); });
    ema_.cover(averaged);
    if (state_ != nullptr) {
      state_->allocate(others);
    }
  }
  void set_steps(const std::map<std::string, std::int64_t>& steps) override {
    if (state_ != nullptr) {
      state_->set_steps(steps);
    }
  }
  void set_options(const std::map<std::string, archive::Values>& options) override {
    if (state_ != nullptr) {
      state_->set_options(options);
    }
  }

 private:
  std::unique_ptr<OptimizerState> state_;
  optim::Ema& ema_;
};

}  // namespace

std::unique_ptr<OptimizerState> with_averages(std::unique_ptr<OptimizerState> state,
                                              optim::Ema& ema) {
  return std::make_unique<WithAverages>(std::move(state), ema);
}

}  // namespace fsdp::checkpoint
