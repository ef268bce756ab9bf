// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/optimizer_state.hpp"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/optim/flat_optimizer.hpp"

namespace fsdp::checkpoint {
namespace {

using archive::Values;
using NamedValues = std::map<std::string, Values>;

double number(const Values& values, const std::string& key, double otherwise) {
  const auto found = values.find(key);
  if (found == values.end()) {
    return otherwise;
  }
  const auto* exact = std::get_if<double>(&found->second);
  return exact != nullptr ? *exact : otherwise;
}

class FlatState : public OptimizerState {
 public:
  explicit FlatState(optim::FlatOptimizer& optimizer) : optimizer_(optimizer) {}

  std::string kind() const override { return optimizer_.kind(); }

  std::vector<StateShard> shards() const override {
    std::vector<StateShard> shards;
    for (const optim::TrainedParameter& parameter : optimizer_.parameters()) {
      if (parameter.steps == 0 && unstepped_.contains(parameter.shard.name)) {
        continue;
      }
      const std::vector<std::string>& names = optimizer_.state_names(parameter.group);
      for (std::size_t state = 0; state < parameter.states.size(); ++state) {
        shards.push_back({parameter.shard.name, names[state], parameter.states[state]});
      }
    }
    return shards;
  }

  std::map<std::string, std::int64_t> steps() const override {
    std::map<std::string, std::int64_t> steps;
    for (const optim::TrainedParameter& parameter : optimizer_.parameters()) {
      if (parameter.shard.parameter.requires_grad() || !parameter.states.empty() ||
          parameter.steps > 0) {
        steps[parameter.shard.name] = parameter.steps;
      }
    }
    return steps;
  }

  NamedValues options() const override {
    NamedValues options;
    for (const auto& [name, group] : groups()) {
      for (const auto& [key, value] : optimizer_.values(group)) {
        options[name][key] = value;
      }
    }
    return options;
  }

  void allocate(const StoredStates& stored) override {
    std::vector<std::string> stepped, unstepped;
    for (const optim::TrainedParameter& parameter : optimizer_.parameters()) {
      const std::string& name = parameter.shard.name;
      (stored.contains(name) ? stepped : unstepped).push_back(name);
    }
    optimizer_.allocate(stepped);
    optimizer_.forget(unstepped);
    unstepped_ = {unstepped.begin(), unstepped.end()};
  }
  void set_steps(const std::map<std::string, std::int64_t>& steps) override {
    optimizer_.set_steps(steps);
  }

  void set_options(const NamedValues& options) override {
    for (const auto& [name, group] : groups()) {
      const auto found = options.find(name);
      if (found == options.end()) {
        continue;
      }
      std::map<std::string, double> values;
      for (const auto& [key, value] : found->second) {
        if (const auto* exact = std::get_if<double>(&value)) {
          values[key] = *exact;
        }
      }
      optimizer_.set_values(group, values);
    }
  }

 private:
  /// Groups by the first name in each.
  std::map<std::string, int> groups() const {
    std::map<int, std::string> first;
    for (const optim::TrainedParameter& parameter : optimizer_.parameters()) {
      std::string& name = first.emplace(parameter.group, parameter.shard.name).first->second;
      name = std::min(name, parameter.shard.name);
    }
    std::map<std::string, int> groups;
    for (const auto& [group, name] : first) {
      groups[name] = group;
    }
    return groups;
  }

  optim::FlatOptimizer& optimizer_;
  std::set<std::string> unstepped_;  ///< in what was loaded last
};

/// How one of LibTorch's rules keeps a parameter's state.
template <class State>
struct Rule;

/// Adam and AdamW.
template <class State, class Options>
struct AdamRule {
  static void tensors(State& state, const std::string& parameter, std::vector<StateShard>& shards) {
    shards.push_back({parameter, "exp_avg", state.exp_avg()});
    shards.push_back({parameter, "exp_avg_sq", state.exp_avg_sq()});
    if (state.max_exp_avg_sq().defined()) {
      shards.push_back({parameter, "max_exp_avg_sq", state.max_exp_avg_sq()});
    }
  }
  static void allocate(State& state, const at::Tensor& shard,
                       const torch::optim::OptimizerOptions& options) {
    state.exp_avg(at::zeros_like(shard));
    state.exp_avg_sq(at::zeros_like(shard));
    if (static_cast<const Options&>(options).amsgrad()) {
      state.max_exp_avg_sq(at::zeros_like(shard));
    }
    state.step(0);
  }
  static std::optional<std::int64_t> steps(const State& state) { return state.step(); }
  static void set_steps(State& state, std::int64_t steps) { state.step(steps); }
  static Values options(const torch::optim::OptimizerOptions& generic) {
    const auto& options = static_cast<const Options&>(generic);
    return {{"lr", options.lr()},
            {"beta1", std::get<0>(options.betas())},
            {"beta2", std::get<1>(options.betas())},
            {"eps", options.eps()},
            {"weight_decay", options.weight_decay()}};
  }
  static void set_options(torch::optim::OptimizerOptions& generic, const Values& values) {
    auto& options = static_cast<Options&>(generic);
    options.lr(number(values, "lr", options.lr()));
    options.betas(std::make_tuple(number(values, "beta1", std::get<0>(options.betas())),
                                  number(values, "beta2", std::get<1>(options.betas()))));
    options.eps(number(values, "eps", options.eps()));
    options.weight_decay(number(values, "weight_decay", options.weight_decay()));
  }
};

template <>
struct Rule<torch::optim::AdamWParamState>
    : AdamRule<torch::optim::AdamWParamState, torch::optim::AdamWOptions> {};
template <>
struct Rule<torch::optim::AdamParamState>
    : AdamRule<torch::optim::AdamParamState, torch::optim::AdamOptions> {};

template <>
struct Rule<torch::optim::SGDParamState> {
  using State = torch::optim::SGDParamState;
  static void tensors(State& state, const std::string& parameter, std::vector<StateShard>& shards) {
    if (state.momentum_buffer().defined()) {
      shards.push_back({parameter, "momentum_buffer", state.momentum_buffer()});
    }
  }
  static void allocate(State& state, const at::Tensor& shard,
                       const torch::optim::OptimizerOptions&) {
    state.momentum_buffer(at::zeros_like(shard));
  }
  static std::optional<std::int64_t> steps(const State&) { return std::nullopt; }
  static void set_steps(State&, std::int64_t) {}
  static Values options(const torch::optim::OptimizerOptions& generic) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(generic);
    return {{"lr", options.lr()},
            {"momentum", options.momentum()},
            {"dampening", options.dampening()},
            {"weight_decay", options.weight_decay()}};
  }
  static void set_options(torch::optim::OptimizerOptions& generic, const Values& values) {
    auto& options = static_cast<torch::optim::SGDOptions&>(generic);
    options.lr(number(values, "lr", options.lr()));
    options.momentum(number(values, "momentum", options.momentum()));
    options.dampening(number(values, "dampening", options.dampening()));
    options.weight_decay(number(values, "weight_decay", options.weight_decay()));
  }
};

/// A parameter as LibTorch's optimizer knows it: by its tensor.
struct KnownParameter {
  std::string name;
  at::Tensor shard;
  torch::optim::OptimizerParamGroup* group = nullptr;
};

template <class State>
class TorchState : public OptimizerState {
 public:
  TorchState(std::string kind, torch::optim::Optimizer& optimizer, const Sharded& sharded)
      : kind_(std::move(kind)), optimizer_(optimizer) {
    std::map<void*, std::string> names;
    for (const NamedShard& parameter : sharded.named_parameters()) {
      names[parameter.shard.unsafeGetTensorImpl()] = parameter.name;
    }
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& shard : group.params()) {
        const auto name = names.find(shard.unsafeGetTensorImpl());
        FSDP_CHECK(name != names.end(), ErrorCode::kInvalidArgument,
                   "the optimizer holds a tensor of ", shard.numel(),
                   " elements that is no shard: build it on sharded.parameters()");
        parameters_[name->second] = {name->second, shard, &group};
      }
    }
  }

  std::string kind() const override { return kind_; }

  std::vector<StateShard> shards() const override {
    std::vector<StateShard> shards;
    for (const auto& [name, parameter] : parameters_) {
      if (State* state = find(parameter)) {
        Rule<State>::tensors(*state, name, shards);
      }
    }
    return shards;
  }

  std::map<std::string, std::int64_t> steps() const override {
    std::map<std::string, std::int64_t> steps;
    for (const auto& [name, parameter] : parameters_) {
      const State* state = find(parameter);
      const auto count = state != nullptr ? Rule<State>::steps(*state) : std::nullopt;
      if (count) {
        steps[name] = *count;
      }
    }
    return steps;
  }

  NamedValues options() const override {
    NamedValues options;
    for (auto& [name, group] : groups()) {
      options[name] = Rule<State>::options(group->options());
    }
    return options;
  }

  void allocate(const StoredStates& stored) override {
    for (const auto& [name, parameter] : parameters_) {
      if (!stored.contains(name)) {
        forget(parameter);
      } else if (find(parameter) == nullptr) {
        auto state = std::make_unique<State>();
        Rule<State>::allocate(*state, parameter.shard.detach(), parameter.group->options());
        optimizer_.state()[parameter.shard.unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }

  void set_steps(const std::map<std::string, std::int64_t>& steps) override {
    for (const auto& [name, count] : steps) {
      const auto found = parameters_.find(name);
      if (found == parameters_.end()) {
        continue;
      }
      if (count == 0) {
        forget(found->second);  // LibTorch makes state in the first step
      } else if (State* state = find(found->second)) {
        Rule<State>::set_steps(*state, count);
      }
    }
  }

  void set_options(const NamedValues& options) override {
    for (auto& [name, group] : groups()) {
      const auto found = options.find(name);
      if (found != options.end()) {
        Rule<State>::set_options(group->options(), found->second);
      }
    }
  }

 private:
  State* find(const KnownParameter& parameter) const {
    const auto found = optimizer_.state().find(parameter.shard.unsafeGetTensorImpl());
    return found == optimizer_.state().end() ? nullptr : static_cast<State*>(found->second.get());
  }

  void forget(const KnownParameter& parameter) {
    optimizer_.state().erase(parameter.shard.unsafeGetTensorImpl());
  }

  /// Groups by the first name in each.
  std::map<std::string, torch::optim::OptimizerParamGroup*> groups() const {
    std::map<torch::optim::OptimizerParamGroup*, std::string> names;
    for (const auto& [name, parameter] : parameters_) {  // in alphabetical order
      names.emplace(parameter.group, name);
    }
    std::map<std::string, torch::optim::OptimizerParamGroup*> groups;
    for (const auto& [group, name] : names) {
      groups[name] = group;
    }
    return groups;
  }

  std::string kind_;
  torch::optim::Optimizer& optimizer_;
  std::map<std::string, KnownParameter> parameters_;
};

}  // namespace

std::unique_ptr<OptimizerState> state_of(optim::FlatOptimizer& optimizer) {
  return std::make_unique<FlatState>(optimizer);
}

std::unique_ptr<OptimizerState> state_of(torch::optim::Optimizer& optimizer,
                                         const Sharded& sharded) {
  using namespace torch::optim;
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return std::make_unique<TorchState<AdamWParamState>>("AdamW", optimizer, sharded);
  }
  if (dynamic_cast<Adam*>(&optimizer) != nullptr) {
    return std::make_unique<TorchState<AdamParamState>>("Adam", optimizer, sharded);
  }
  if (dynamic_cast<SGD*>(&optimizer) != nullptr) {
    return std::make_unique<TorchState<SGDParamState>>("SGD", optimizer, sharded);
  }
  fail(ErrorCode::kUnsupported,
       "checkpoints know torch::optim::AdamW, Adam and SGD: implement OptimizerState for this one");
}

}  // namespace fsdp::checkpoint
