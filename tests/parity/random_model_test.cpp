// SPDX-License-Identifier: Apache-2.0
/// Random modules, sharded and trained in random ways, against plain LibTorch in one process.
/// FSDP_PROPERTY_SEED and FSDP_PROPERTY_CASES choose other ones; a failure prints the seed of its
/// case, which as FSDP_PROPERTY_SEED with FSDP_PROPERTY_CASES=1 repeats it.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "support/random_model.hpp"
#include "support/slow_copier.hpp"
#include "support/twins.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

constexpr int kBlocks = 10;

RandomNet make_net(const RandomPlan& plan) {
  static std::mutex generator;
  std::lock_guard lock(generator);
  return RandomNet(plan);
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const RandomPlan& plan,
                                                        std::vector<at::Tensor> parameters) {
  if (plan.has_adam) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(1e-2).eps(1e-4));
  }
  return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone());
  }
  return copies;
}

/// One process plays all ranks.
std::vector<at::Tensor> train_reference(const RandomPlan& plan) {
  RandomNet net = make_net(plan);
  const auto optimizer = make_optimizer(plan, distinct(net->parameters()));
  for (int step = 0; step < plan.steps; ++step) {
    net->freeze_for(step);
    optimizer->zero_grad();
    for (int micro = 0; micro < plan.micro_batches[static_cast<std::size_t>(step)]; ++micro) {
      for (int rank = 0; rank < plan.ranks; ++rank) {
        (net->loss(step, micro, rank) / plan.ranks).backward();
      }
    }
    optimizer->step();
  }
  return copies_of(net->parameters());
}

/// How a case is sharded: strategy, mesh, stores, what stays whole, when gradients travel.
struct Sharding {
  Options options;
  bool is_low_precision = false;
  std::vector<GradientSync> syncs;  ///< of the backwards of a step but the last, round robin
};

std::optional<DeviceMesh> draw_mesh(Draw& draw, const World& world) {
  std::vector<int> divisors;
  for (int shard = 1; shard <= world.size(); ++shard) {
    if (world.size() % shard == 0) {
      divisors.push_back(shard);
    }
  }
  const int shard = draw.any_of(divisors);
  return DeviceMesh(world, world.size() / shard, shard);
}

Sharding draw_sharding(const RandomPlan& plan, const RandomNet& net, const World& world) {
  Draw draw(plan.seed + 1000003);
  Sharding sharding;
  Options& options = sharding.options;
  options.units = net->units();
  options.debug.print_promise = false;
  options.debug.poison_freed = true;
  options.memory.prefetch = draw.between(0, 3);
  options.memory.extra_slots = 1;  // a tied weight and a bias are of two units
  if (draw.one_in(2)) {
    options.rules.push_back({.units = root_unit(), .keep_gathered = true});
  }
  options.memory.align_bytes = draw.any_of<int>({0, 16, 128});
  options.memory.store = draw.one_in(2) ? Store::kSlots : Store::kAliased;
  options.strategy = static_cast<Strategy>(draw.between(0, kStrategies - 1));
  if (options.strategy == Strategy::kHybrid || options.strategy == Strategy::kHybridOptimizer ||
      options.strategy == Strategy::kSecondaryShard) {
    options.mesh = draw_mesh(draw, world);
  }
  const std::vector<std::string> units = options.units.required_names;
  const bool has_one = std::ranges::any_of(
      units, [](const std::string& name) { return name == "layer0" || name == "layer2"; });
  if (draw.one_in(4) && has_one) {
    options.rules.push_back({.units = units_matching("layer[02]"), .keep_gathered = true});
  }
  options.replicate_below = draw.one_in(4) ? draw.between(1, 12) : 0;
  sharding.is_low_precision = plan.is_low_precision;
  if (plan.is_low_precision) {
    options.precision.param = at::kBFloat16;
    options.precision.full_precision = norm_layers();
    if (draw.one_in(3)) {
      options.precision.reduce = at::kBFloat16;
    }
  }
  for (int i = 0; i < 2; ++i) {
    sharding.syncs.push_back(static_cast<GradientSync>(draw.between(0, 2)));
  }
  if (draw.one_in(4)) {
    using namespace std::chrono_literals;
    options.memory.store = Store::kSlots;
    options.memory.offload = Offload{.copier = std::make_shared<SlowCopier>(0ms)};
  }
  return sharding;
}

std::string to_string(const Sharding& sharding) {
  const Options& options = sharding.options;
  std::string rules;
  for (const UnitRule& rule : options.rules) {
    rules += ", " + to_string(rule);
  }
  return std::string(to_string(options.strategy)) +
         (options.mesh ? ", " + options.mesh->describe() : "") +
         (options.memory.store == Store::kSlots ? ", slots" : ", aliased") + ", prefetch " +
         std::to_string(options.memory.prefetch) + rules + ", replicates below " +
         std::to_string(options.replicate_below) + (sharding.is_low_precision ? ", bfloat16" : "") +
         (options.memory.offload ? ", offloaded" : "") + ", syncs " +
         std::to_string(static_cast<int>(sharding.syncs[0])) + " " +
         std::to_string(static_cast<int>(sharding.syncs[1]));
}

/// What no parameter covers, in the shards and in their gradients, is zero.
void expect_zero_padding(const Sharded& sharded) {
  for (const FlatShard& flat : sharded.shard_access()->flats()) {
    for (const at::Tensor& whole : {flat.shard, flat.grad}) {
      if (!whole.defined()) {
        continue;
      }
      const at::Tensor rest = whole.detach().clone();
      for (const NamedShard& parameter : sharded.named_parameters()) {
        if (parameter.shard.storage().is_alias_of(flat.shard.storage()) &&
            parameter.shard.numel() > 0) {
          rest.narrow(0, parameter.shard.storage_offset() - flat.shard.storage_offset(),
                      parameter.shard.numel())
              .zero_();
        }
      }
      EXPECT_EQ(rest.count_nonzero().item<std::int64_t>(), 0);
    }
  }
}

std::vector<at::Tensor> train_sharded(const RandomPlan& plan, const World& world,
                                      std::string& description) {
  RandomNet net = make_net(plan);
  if (plan.is_low_precision) {
    net->to(at::kFloat);
  }
  const std::vector<at::Tensor> parameters = net->parameters();
  const Sharding sharding = draw_sharding(plan, net, world);
  if (world.rank() == 0) {
    description = to_string(sharding);
  }
  Sharded sharded = fully_shard(net, world, sharding.options);
  const auto optimizer = make_optimizer(plan, sharded.parameters());
  for (int step = 0; step < plan.steps; ++step) {
    net->freeze_for(step);
    optimizer->zero_grad();
    const int micro_batches = plan.micro_batches[static_cast<std::size_t>(step)];
    for (int micro = 0; micro < micro_batches; ++micro) {
      sharded.set_gradient_sync(micro + 1 < micro_batches
                                    ? sharding.syncs[static_cast<std::size_t>(micro) % 2]
                                    : GradientSync::kEveryBackward);
      net->loss(step, micro, world.rank()).backward();
    }
    expect_zero_padding(sharded);
    optimizer->step();
    if (plan.evaluates) {
      torch::NoGradGuard no_grad;
      net->loss(step, 0, world.rank());
    }
    if (plan.reads_full) {
      const FullParameters full = sharded.full_parameters();
    }
  }
  sharded.reshard();
  EXPECT_EQ(sharded.report().unsharded_numel, 0);
  EXPECT_EQ(sharded.report().live[memory::Kind::kFullScope], 0);
  const FullParameters full = sharded.full_parameters();
  return copies_of(parameters);
}

/// In low precision each weight must move as the reference moved it, to a third of that way: a
/// wrong divisor or a lost gradient is off by more, rounding by less.
double bound(const RandomPlan& plan, const at::Tensor& expected, const at::Tensor& initial) {
  return plan.is_low_precision ? 5e-3 + 0.35 * (expected - initial).norm().item<double>() : 1e-11;
}

void expect_parity(const RandomPlan& plan) {
  const std::vector<at::Tensor> initial = copies_of(make_net(plan)->parameters());
  const std::vector<at::Tensor> expected = train_reference(plan);
  std::mutex mutex;
  std::string description;
  try {
    run_threads(plan.ranks, [&](World world) {
      const std::vector<at::Tensor> actual = train_sharded(plan, world, description);
      std::lock_guard lock(mutex);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        const double difference = (actual[i].to(at::kDouble) - expected[i]).norm().item<double>();
        EXPECT_LE(difference, bound(plan, expected[i], initial[i]))
            << "rank " << world.rank() << ", parameter " << i << "\n"
            << to_string(plan) << "\n"
            << description;
      }
    });
  } catch (const std::exception& error) {
    ADD_FAILURE() << to_string(plan) << "\n" << description << "\n" << error.what();
  }
}

class RandomModels : public testing::TestWithParam<int> {};

TEST_P(RandomModels, TrainAsInOneProcess) {
  const std::uint64_t first = from_environment("FSDP_PROPERTY_SEED", 1);
  const std::uint64_t cases = from_environment("FSDP_PROPERTY_CASES", 500);
  for (std::uint64_t i = static_cast<std::uint64_t>(GetParam()); i < cases; i += kBlocks) {
    expect_parity(draw_plan(first + i));
    if (HasFailure()) {
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, RandomModels, testing::Range(0, kBlocks));

}  // namespace
