// SPDX-License-Identifier: Apache-2.0
#include "parity/touch_support.hpp"

#include <algorithm>
#include <mutex>

namespace fsdp::test {

namespace {

constexpr double kRate = 0.0625;  // exact products: fused or not, the sum rounds once

struct Record {
  std::vector<Tensors> outputs;  ///< [step][output]
  std::vector<Tensors> grads;    ///< [step][parameter], in memory order
  Tensors weights;               ///< after the last step, in memory order
};

/// A tensor's elements as they lie in memory: what shards are slices of.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}).clone();
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone());
  }
  return copies;
}

Case make_seeded(const std::function<Case()>& make) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  at::manual_seed(7);
  return make();
}

Tensors values_of(const NamedTensors& parameters) {
  Tensors values;
  for (const auto& [name, tensor] : parameters) {
    values.push_back(tensor);
  }
  return values;
}

Record run_unsharded(const std::function<Case()>& make, int steps) {
  Case of = make_seeded(make);
  const Trial trial{.parameters = values_of(of.parameters)};
  Record record;
  for (int step = 0; step < steps; ++step) {
    record.outputs.push_back(copies_of(of.step(trial)));
    torch::NoGradGuard no_grad;
    Tensors& grads = record.grads.emplace_back();
    for (const auto& [name, tensor] : of.parameters) {
      const at::Tensor& grad = tensor.grad();
      if (grad.defined()) {
        // Strides of a gradient need not be those of its parameter; a shard's are.
        const at::Tensor same_order =
            at::empty_like(tensor).copy_(grad.is_sparse() ? grad.to_dense() : grad.detach());
        grads.push_back(in_memory_order(same_order));
        tensor.add_(same_order, -kRate);
      } else {
        grads.push_back(at::zeros({tensor.numel()}, tensor.options()));
      }
    }
    trial.zero_grad();
  }
  for (const auto& [name, tensor] : of.parameters) {
    record.weights.push_back(in_memory_order(tensor));
  }
  return record;
}

void expect_same(const at::Tensor& expected, const at::Tensor& actual, const std::string& what) {
  torch::NoGradGuard no_grad;
  ASSERT_EQ(expected.sizes(), actual.sizes()) << what;
  EXPECT_TRUE(at::equal(expected, actual.detach()))
      << what << " differs by up to "
      << (expected.to(at::kDouble) - actual.to(at::kDouble)).abs().max().item<double>();
}

struct Variant {
  bool is_each = false;
  int world_size = 1;
  int prefetch = 1;
  Store store = Store::kSlots;
  std::string text() const {
    return std::string(is_each ? "each parameter a unit" : "one unit") + ", " +
           std::to_string(world_size) + " ranks, prefetch " + std::to_string(prefetch) +
           (store == Store::kAliased ? ", shared weights" : "");
  }
};

Sharded shard(const Case& of, const World& world, const Variant& variant, const Traits& traits) {
  Options options = strict_options();
  options.memory.prefetch = variant.prefetch;
  options.memory.store = variant.store;
  if (variant.is_each) {
    options.memory.extra_slots = std::max(0, traits.units_at_once - 1 - variant.prefetch);
    return fully_shard(each_its_own(of.parameters), world, options);
  }
  options.units = {};
  return of.script != nullptr ? fully_shard(*of.script, world, options)
                              : fully_shard(of.module, world, options);
}

void compare(const std::function<Case()>& make, const World& world, const Variant& variant,
             const Traits& traits, const Record& expected) {
  SCOPED_TRACE(variant.text());
  Case of = make_seeded(make);
  Sharded sharded = shard(of, world, variant, traits);
  const Trial trial{.sharded = &sharded, .parameters = values_of(of.parameters)};
  torch::optim::SGD optimizer(sharded.parameters(), kRate);
  for (std::size_t step = 0; step < expected.outputs.size(); ++step) {
    const std::string at_step = " of step " + std::to_string(step);
    const Tensors outputs = copies_of(of.step(trial));
    ASSERT_EQ(outputs.size(), expected.outputs[step].size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      expect_same(expected.outputs[step][i], outputs[i], "output " + std::to_string(i) + at_step);
    }
    const auto shards = sharded.named_parameters();
    ASSERT_EQ(shards.size(), of.parameters.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const at::Tensor& mine = shards[i].shard;
      const at::Tensor grad = mine.grad().defined() ? mine.grad() : at::zeros_like(mine);
      expect_same(expected.grads[step][i].narrow(0, shards[i].begin, mine.numel()), grad,
                  "gradient of " + of.parameters[i].first + at_step);
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  auto whole = sharded.full_parameters();
  for (std::size_t i = 0; i < of.parameters.size(); ++i) {
    expect_same(expected.weights[i], in_memory_order(of.parameters[i].second),
                "trained " + of.parameters[i].first);
  }
}

}  // namespace

void Trial::free_weights() const {
  if (sharded != nullptr) {
    Sharded(*sharded).reshard();
  }
}

void Trial::zero_grad() const {
  if (sharded != nullptr) {
    Sharded(*sharded).zero_grad();
    return;
  }
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad().reset();
  }
}

void expect_parity(const std::function<Case()>& make, const Traits& traits) {
  const Record expected = run_unsharded(make, traits.steps);
  std::vector<Variant> variants;
  for (int world_size : traits.world_sizes) {
    for (bool is_each : {true, false}) {
      if (is_each && world_size > 1 && !traits.has_fixed_order) {
        continue;
      }
      variants.push_back({.is_each = is_each, .world_size = world_size, .prefetch = 0});
      variants.push_back({.is_each = is_each, .world_size = world_size, .prefetch = 1});
      if (world_size > 1) {
        variants.push_back({.is_each = is_each, .world_size = 2, .store = Store::kAliased});
      }
    }
  }
  for (const Variant& variant : variants) {
    try {
      run_threads(variant.world_size,
                  [&](const World& world) { compare(make, world, variant, traits, expected); });
    } catch (const std::exception& error) {
      ADD_FAILURE() << variant.text() << ": " << error.what();
    }
  }
}

std::shared_ptr<torch::nn::Module> each_its_own(const NamedTensors& parameters) {
  auto shell = std::make_shared<torch::nn::Module>("each");
  for (auto [name, tensor] : parameters) {
    std::replace(name.begin(), name.end(), '.', '_');
    auto holder = std::make_shared<torch::nn::Module>(name);
    holder->register_parameter("value", tensor, tensor.requires_grad());
    shell->register_module(name, holder);
  }
  return shell;
}

Options strict_options(int units_at_once) {
  Options options;
  options.units = Units([](const Candidate&) { return true; });
  options.memory.extra_slots = std::max(0, units_at_once - 1 - options.memory.prefetch);
  options.debug.print_promise = false;
  options.debug.poison_freed = true;
  return options;
}

Sharded shard_each(torch::nn::Module& module, const World& world, int units_at_once) {
  return fully_shard(each_its_own(named_tensors(module)), world, strict_options(units_at_once));
}

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors named;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

at::Tensor loss_of(const at::Tensor& output) { return output.sin().sum(); }
at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }
at::Tensor random_indices(std::int64_t below, at::IntArrayRef sizes) {
  return at::randint(below, sizes, at::kLong);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TwoLayersImpl::TwoLayersImpl() {
  first = register_module("first", torch::nn::Linear(4, 6));
  second = register_module("second", torch::nn::Linear(6, 3));
}

at::Tensor TwoLayersImpl::forward(const at::Tensor& x) {
  return second->forward(torch::tanh(first->forward(x)));
}

TwoLayers two_layers() {
  auto module = std::make_shared<TwoLayersImpl>();
  module->to(torch::kDouble);
  return module;
}

}  // namespace fsdp::test
