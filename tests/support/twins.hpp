// SPDX-License-Identifier: Apache-2.0
/// One model trained twice, in one process without sharding and on several ranks, with a loss and a
/// set of frozen parameters that may change from step to step.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {

template <class Model>
struct Training {
  int ranks = 2;
  int steps = 3;
  Options options = test_options({});
  /// The loss of one rank in one step.
  std::function<at::Tensor(Model& model, int step, int rank)> loss = {};
  /// What happens to the model before a step, as freezing.
  std::function<void(Model& model, int step)> before = [](Model&, int) {};
  /// The same for a sharded rank, in place of `before` where it is given.
  std::function<void(Sharded& sharded, torch::optim::AdamW& optimizer, int step)> before_sharded =
      {};
  /// After each step of a sharded rank.
  std::function<void(Sharded& sharded, torch::optim::AdamW& optimizer, int step)> after =
      [](Sharded&, torch::optim::AdamW&, int) {};
};

/// What a rank sees in a step: [3, width], the same for equal arguments.
inline at::Tensor batch(std::int64_t width, int step, int rank) {
  return torch::arange(3 * width, torch::kDouble)
      .mul(0.7)
      .add(step + 3 * rank)
      .sin()
      .view({3, width});
}

inline torch::optim::AdamWOptions decaying() {
  return torch::optim::AdamWOptions(0.05).eps(1e-4).weight_decay(0.1);
}

/// Each once, tied or not, in the module's order.
inline std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> once;
  for (const at::Tensor& parameter : parameters) {
    if (std::ranges::none_of(once, [&](const at::Tensor& t) { return t.is_same(parameter); })) {
      once.push_back(parameter);
    }
  }
  return once;
}

inline std::vector<bool> which_have_gradients(const std::vector<at::Tensor>& tensors) {
  std::vector<bool> have;
  for (const at::Tensor& tensor : tensors) {
    have.push_back(tensor.grad().defined());
  }
  return have;
}

/// Expects that after each step the same parameters have gradients, and that parameters are equal
/// at the end. AdamW with weight decay, to which no gradient and a gradient of zero differ.
template <class Model>
void expect_twins(const Training<Model>& training) {
  torch::manual_seed(11);
  auto reference = std::make_shared<Model>();
  reference->to(torch::kDouble);
  std::vector<at::Tensor> initial;
  for (const at::Tensor& parameter : distinct(reference->parameters())) {
    initial.push_back(parameter.detach().clone());
  }
  std::vector<std::vector<bool>> have(static_cast<std::size_t>(training.steps));
  torch::optim::AdamW alone(distinct(reference->parameters()), decaying());
  for (int step = 0; step < training.steps; ++step) {
    training.before(*reference, step);
    alone.zero_grad();
    for (int rank = 0; rank < training.ranks; ++rank) {
      (training.loss(*reference, step, rank) / training.ranks).backward();
    }
    have[static_cast<std::size_t>(step)] = which_have_gradients(distinct(reference->parameters()));
    alone.step();
  }
  run_threads(training.ranks, [&](World world) {
    auto model = std::make_shared<Model>();
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < initial.size(); ++i) {
        distinct(model->parameters())[i].copy_(initial[i]);
      }
    }
    training.before(*model, 0);
    Sharded sharded = fully_shard(model, world, training.options);
    torch::optim::AdamW optimizer(sharded.parameters(), decaying());
    for (int step = 0; step < training.steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step) + " rank " + std::to_string(world.rank()));
      if (training.before_sharded) {
        training.before_sharded(sharded, optimizer, step);
      } else {
        training.before(*model, step);
      }
      optimizer.zero_grad();
      training.loss(*model, step, world.rank()).backward();
      EXPECT_EQ(which_have_gradients(sharded.parameters()), have[static_cast<std::size_t>(step)]);
      optimizer.step();
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
      training.after(sharded, optimizer, step);
    }
    const auto full = sharded.full_parameters();
    for (std::size_t i = 0; i < initial.size(); ++i) {
      EXPECT_TRUE(torch::allclose(distinct(model->parameters())[i],
                                  distinct(reference->parameters())[i], 0, 1e-12))
          << "parameter " << i;
    }
  });
}

}  // namespace fsdp::test
