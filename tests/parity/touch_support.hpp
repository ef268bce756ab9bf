// SPDX-License-Identifier: Apache-2.0
/// Runs a piece of training code unsharded and sharded in every way that matters, and compares
/// outputs, gradients and trained weights bit by bit.
#pragma once

#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.hpp"

namespace fsdp::test {

using Tensors = std::vector<at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a case may ask of the run that it is in.
struct Trial {
  const Sharded* sharded = nullptr;  ///< null in the unsharded run
  Tensors parameters = {};           ///< the module's own tensors
  /// Frees every gathered weight now; nothing in the unsharded run.
  void free_weights() const;
  /// Forgets gradients, wherever they live.
  void zero_grad() const;
};

/// A model with code that trains it for one step.
struct Case {
  NamedTensors parameters = {};
  std::shared_ptr<torch::nn::Module> module = {};
  std::shared_ptr<torch::jit::Module> script = {};
  /// Runs forward and backward; returns what must agree with the unsharded run.
  std::function<Tensors(const Trial&)> step = {};
};

struct Traits {
  /// Units that the greediest operator takes when each parameter is a unit.
  int units_at_once = 2;
  /// False when operators run in no fixed order (threads): then several ranks must not gather
  /// several units, because a gather is a collective.
  bool has_fixed_order = true;
  std::vector<int> world_sizes = {1, 2};
  int steps = 3;
};

/// `make` is called under a lock with the same seed each time. Runs the case unsharded, then with
/// each parameter a unit and with one unit, with one rank and two, with and without prefetching,
/// with slots (poisoned when freed) and, for two ranks, with shared weights. Between steps weights
/// move by SGD with a rate that is a power of two, which rounds the same however it is vectorised.
void expect_parity(const std::function<Case()>& make, const Traits& traits = {});

/// A module of which every parameter of `parameters` is a unit of its own; the tensors are the
/// same.
std::shared_ptr<torch::nn::Module> each_its_own(const NamedTensors& parameters);

/// Quiet, poisoned, every claimed module a unit.
Options strict_options(int units_at_once = 2);
/// Shards so that each parameter of the module is a unit.
Sharded shard_each(torch::nn::Module& module, const World& world, int units_at_once = 2);

NamedTensors named_tensors(const torch::nn::Module& module);

/// A loss whose gradient differs from element to element.
at::Tensor loss_of(const at::Tensor& output);
at::Tensor random(at::IntArrayRef sizes);  ///< fp64
at::Tensor random_indices(std::int64_t below, at::IntArrayRef sizes);

/// A case of `step` over a module.
template <class M, class F>
Case case_of(std::shared_ptr<M> module, F step) {
  module->to(torch::kDouble);
  Case made{.parameters = named_tensors(*module), .module = module};
  made.step = [module, step](const Trial& trial) { return step(*module, trial); };
  return made;
}

/// The commonest case: forward, loss, backward. `forward` gets the module and returns one tensor.
template <class M, class F>
Case training_case(std::shared_ptr<M> module, F forward) {
  return case_of(std::move(module), [forward](M& of, const Trial&) -> Tensors {
    at::Tensor output = forward(of);
    loss_of(output).backward();
    return {output};
  });
}

/// The error's text, "" when `body` does not throw.
std::string error_of(const std::function<void()>& body);

/// Two linear layers and an activation between them.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first{nullptr}, second{nullptr};
};
using TwoLayers = std::shared_ptr<TwoLayersImpl>;
TwoLayers two_layers();  ///< fp64, seeded

}  // namespace fsdp::test
