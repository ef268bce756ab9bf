// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems with replicas and mixed strategies, by their number in
/// docs/reference/faults.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"
#include "support/weights.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;
namespace nn = torch::nn;

struct Mesh {
  int replicate;
  int shard;
};

Options on_mesh(const World& world, Mesh mesh, Strategy strategy = Strategy::kHybrid,
                Units units = {}) {
  Options options = test_options(std::move(units));
  options.strategy = strategy;
  options.mesh = DeviceMesh(world, mesh.replicate, mesh.shard);
  return options;
}

constexpr Strategy kHybrids[] = {Strategy::kHybrid, Strategy::kHybridOptimizer,
                                 Strategy::kSecondaryShard};

void expect_gradient(const Sharded& sharded, double expected) {
  for (const at::Tensor& gradient : whole_gradients(sharded)) {
    EXPECT_TRUE(torch::allclose(gradient, torch::full_like(gradient, expected), 0, 1e-12))
        << gradient << " is not " << expected;
  }
}

TEST(MeshFault, Fault020_AGroupOfOneIsAnIdentityOnBothAxes) {
  for (const Strategy strategy : kHybrids) {
    for (const Mesh mesh : {Mesh{1, 1}, Mesh{1, 2}, Mesh{2, 1}}) {
      run_threads(mesh.replicate * mesh.shard, [&](World world) {
        auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3});
        Sharded sharded = fully_shard(model, world, on_mesh(world, mesh, strategy));
        for (int micro = 0; micro < 10; ++micro) {
          model->sum().backward();
        }
        EXPECT_TRUE(
            torch::equal(whole_gradients(sharded)[0], torch::full({3}, 10.0, torch::kDouble)));
      });
    }
  }
}

TEST(MeshFault, Fault021_ReplicasOfAWholeModelStayEqual) {
  for (const Strategy strategy : kHybrids) {
    std::vector<at::Tensor> ends(2);
    run_threads(2, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{3, 4});
      Sharded sharded = fully_shard(model, world, on_mesh(world, {2, 1}, strategy));
      optim::AdamW optimizer(sharded, {.lr = 0.1});
      for (int step = 0; step < 5; ++step) {
        sharded.zero_grad();
        (model->sum().sin() * (world.rank() + 1)).backward();
        if (step == 0) {
          expect_gradient(sharded, 1.5 * std::cos(7.0));
        }
        optimizer.step();
      }
      const auto full = sharded.full_parameters();
      ends[static_cast<std::size_t>(world.rank())] = torch::cat(model->parameters()).clone();
    });
    EXPECT_TRUE(torch::equal(ends[0], ends[1]));
    EXPECT_FALSE(torch::equal(ends[0], torch::ones({7}, torch::kDouble)));
  }
}

TEST(MeshFault, Fault022_ADivisorMeansTheSameOnAnyMesh) {
  const auto expect = [](const World& world, const Options& options) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5});
    Sharded sharded = fully_shard(model, world, options);
    sharded.set_gradient_divisor(300);
    model->sum().backward();
    expect_gradient(sharded, 4.0 / 300);
  };
  run_threads(4, [&](World world) {
    for (const Strategy strategy :
         {Strategy::kFullShard, Strategy::kShardGrad, Strategy::kReplicate}) {
      Options options = test_options({});
      options.strategy = strategy;
      expect(world, options);
    }
    for (const Strategy strategy : kHybrids) {
      for (const Mesh mesh : {Mesh{2, 2}, Mesh{1, 4}, Mesh{4, 1}}) {
        expect(world, on_mesh(world, mesh, strategy));
      }
    }
  });
}

TEST(MeshFault, Fault023_ReplicasReduceTheAccumulatedValueOnce) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridOptimizer}) {
    run_threads(4, [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 2});
      Sharded sharded = fully_shard(model, world, on_mesh(world, {2, 2}, strategy));
      for (int step = 0; step < 2; ++step) {
        sharded.reset_counters();
        for (int k = 1; k <= 3; ++k) {
          sharded.set_gradient_sync(k < 3 ? GradientSync::kDeferReplicate
                                          : GradientSync::kEveryBackward);
          (model->sum() * ((world.rank() + 1) * k)).backward();
        }
        expect_gradient(sharded, 15);
        EXPECT_EQ(sharded.report().counters.replica_reductions, 1);
        EXPECT_EQ(sharded.report().counters.reduce_scatters, 3);
        EXPECT_EQ(sharded.report().live[memory::Kind::kDeferred], 8 * 2 * 2)
            << "half of seven elements, padded to four slices";
        sharded.zero_grad();
      }
    });
  }
}

TEST(MeshFault, Fault023_UnitsWithAndWithoutReplicasMayDeferTogether) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{6, 2});
    Options options = test_options({});
    options.replicate_below = 3;
    Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 2; ++step) {
      for (const GradientSync sync :
           {GradientSync::kEveryBackward, GradientSync::kDeferReplicate,
            GradientSync::kDeferReplicate, GradientSync::kDeferAll, GradientSync::kEveryBackward}) {
        sharded.set_gradient_sync(sync);
        model->sum().backward();
      }
      expect_gradient(sharded, 5);
      sharded.zero_grad();
    }
  });
}

TEST(MeshFault, Fault029_ReplicasAreNotCountedTwiceInANorm) {
  for (const Strategy strategy : kHybrids) {
    for (const Mesh mesh : {Mesh{2, 2}, Mesh{4, 1}, Mesh{1, 4}}) {
      run_threads(4, [&](World world) {
        auto model = std::make_shared<Weights>(std::vector<std::int64_t>{6});
        Sharded sharded = fully_shard(model, world, on_mesh(world, mesh, strategy));
        model->sum().backward();
        EXPECT_NEAR(clip_grad_norm_(sharded, 1.0), 2.449490, 1e-6);
        expect_gradient(sharded, 1 / (std::sqrt(6.0) + 1e-6));
      });
    }
  }
}

TEST(MeshFault, Fault030_AReplicatedParameterCountsOnceInANorm) {
  run_threads(4, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{4, 1});
    Options options = test_options({});
    options.replicate_below = 2;
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(sharded.report().units.back().name, "(replicated)");
    EXPECT_EQ(sharded.report().units.back().strategy, Strategy::kReplicate);
    (model->weights[0].sum() + 2 * model->weights[1].sum()).backward();
    EXPECT_NEAR(grad_norm(sharded), 2.828427, 1e-6);
  });
}

TEST(MeshFault, Fault093_MemoryIsSteadyFromTheSecondStepOn) {
  run_threads(4, [](World world) {
    for (const Strategy strategy : kHybrids) {
      Chain model(3, 5);
      Sharded sharded = fully_shard(model, world, on_mesh(world, {2, 2}, strategy, chain_units()));
      optim::AdamW optimizer(sharded);
      memory::Bytes second;
      for (int step = 0; step < 10; ++step) {
        sharded.set_gradient_sync(GradientSync::kDeferReplicate);
        model->forward(torch::ones({2, 5})).sum().backward();
        sharded.set_gradient_sync(GradientSync::kEveryBackward);
        model->forward(torch::ones({2, 5})).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
        if (step == 1) {
          second = sharded.report().live;
        }
        EXPECT_TRUE(step < 2 || sharded.report().live == second) << step;
      }
    }
  });
}

/// Every element of every parameter is answered for by one rank.
void expect_answered_once(const Sharded& sharded) {
  for (const NamedShard& parameter : sharded.named_parameters()) {
    at::Tensor counts = torch::zeros(parameter.sizes).view({-1});
    counts.narrow(0, parameter.begin + parameter.answered_begin, parameter.answered_numel).fill_(1);
    sharded.world().transport().all_reduce(counts, {.name = "test"});
    EXPECT_TRUE(torch::equal(counts, torch::ones_like(counts))) << parameter.name;
  }
}

struct Layers : nn::Module {
  Layers()
      : a(register_module("a", nn::Linear(3, 5))),
        b(register_module("b", nn::Linear(5, 7))),
        turned(register_parameter("turned", torch::randn({4, 6}).t().clone())) {}
  nn::Linear a, b;
  at::Tensor turned;
};

/// The shards of `model` are its elements' positions, whole weights of `value` are what is loaded.
void fill_with(const Sharded& sharded, double offset) {
  torch::NoGradGuard no_grad;
  for (const NamedShard& parameter : sharded.named_parameters()) {
    parameter.shard.copy_(torch::arange(parameter.begin, parameter.begin + parameter.shard.numel())
                              .add(offset + 1000.0 * static_cast<double>(parameter.name.size())));
  }
}

void expect_filled_with(const Sharded& sharded, double offset) {
  for (const NamedShard& parameter : sharded.named_parameters()) {
    const at::Tensor expected =
        torch::arange(parameter.begin, parameter.begin + parameter.shard.numel())
            .add(offset + 1000.0 * static_cast<double>(parameter.name.size()))
            .to(parameter.shard.scalar_type());
    EXPECT_TRUE(torch::equal(parameter.shard, expected)) << parameter.name;
  }
}

TEST(MeshFault, Fault098_ACheckpointLoadsOnAnyMeshAndFromAny) {
  std::vector<std::string> directories;
  const TemporaryDirectory directory;
  int saved = 0;
  for (const auto& [from, to] : std::vector<std::pair<Mesh, Mesh>>{
           {{1, 4}, {2, 2}}, {{2, 2}, {1, 3}}, {{4, 1}, {2, 2}}, {{2, 3}, {4, 2}}}) {
    for (const Strategy strategy : kHybrids) {
      const std::string path = directory.path("run" + std::to_string(saved++));
      run_threads(from.replicate * from.shard, [&](World world) {
        auto model = std::make_shared<Layers>();
        Sharded sharded =
            fully_shard(model, world, on_mesh(world, from, strategy, units_of<nn::Linear>()));
        expect_answered_once(sharded);
        fill_with(sharded, 0.5);
        checkpoint::Saver saver(path, sharded);
        saver.save(1);
        saver.wait();
      });
      run_threads(to.replicate * to.shard, [&](World world) {
        auto model = std::make_shared<Layers>();
        Sharded sharded = fully_shard(model, world, on_mesh(world, to, strategy));
        checkpoint::load(path, sharded, nullptr, {.verify = true});
        expect_filled_with(sharded, 0.5);
      });
    }
  }
}

TEST(MeshFault, Fault100_ReplicasOnTwoHostsWriteDifferentHalvesAndLoadTheirShards) {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, std::string>> environment = {
      {"FSDP_TEST_ROOT", directory.path()}};
  const auto rank = [](int rank) {
    ::setenv("FSDP_HOST_ID", rank < 2 ? "first" : "second", 1);
    ::setenv("LOCAL_RANK", std::to_string(rank % 2).c_str(), 1);
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    const World world = init();
    const std::string root = std::getenv("FSDP_TEST_ROOT");
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{40});
    Sharded sharded = fully_shard(model, world, on_mesh(world, {2, 2}));
    const NamedShard parameter = sharded.named_parameters()[0];
    EXPECT_EQ(parameter.begin, 20 * (rank % 2));
    EXPECT_EQ(parameter.shard.numel(), 20);
    EXPECT_EQ(parameter.answered_begin, 10 * (rank / 2)) << "each replica writes another half";
    EXPECT_EQ(parameter.answered_numel, 10);
    fill_with(sharded, 0.25);
    checkpoint::Saver saver(root, sharded);
    saver.save(1);
    saver.wait();
    fill_with(sharded, 7);
    checkpoint::load(root, sharded, nullptr, {.verify = true});
    expect_filled_with(sharded, 0.25);
  };
  for (const auto& result : run_processes(4, "ranks", rank, {.environment = environment})) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

/// Three units of two parameters, whose gradients come in turn: two buffers do not do, so units are
/// reduced in two rounds.
struct InTurn : nn::Module {
  InTurn() {
    for (const char* name : {"a", "b", "c"}) {
      units.push_back(
          register_module(name, std::make_shared<Weights>(std::vector<std::int64_t>{5, 2})));
    }
  }
  at::Tensor sum() {
    at::Tensor total = torch::zeros({}, torch::kDouble);
    for (std::size_t i = 0; i < 2; ++i) {
      for (const auto& unit : units) {
        total = total + unit->weights[i].sum();
      }
    }
    return total;
  }
  std::vector<std::shared_ptr<Weights>> units;
};

TEST(Mesh, AUnitThatIsReducedInTwoRoundsOfABackwardGetsTheSum) {
  run_threads(4, [](World world) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate, Strategy::kHybrid,
                                    Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
      SCOPED_TRACE(to_string(strategy));
      auto model = std::make_shared<InTurn>();
      Options options = test_options(units_listed({"a", "b", "c"}));
      options.strategy = strategy;
      if (std::ranges::find(kHybrids, strategy) != std::end(kHybrids)) {
        options.mesh = DeviceMesh(world, 2, 2);
      }
      Sharded sharded = fully_shard(model, world, options);
      for (int micro = 1; micro <= 2; ++micro) {
        sharded.reset_counters();
        (model->sum() * (world.rank() + 1)).backward();
        expect_gradient(sharded, 2.5 * micro);
        const Counters counters = sharded.report().counters;
        EXPECT_GT(std::max(counters.reduce_scatters, counters.replica_reductions), 3)
            << "second rounds";
      }
    }
  });
}

/// Weights after three steps; with `is_interrupted`, a rank fails in the second and all recover.
at::Tensor trained(const World& world, Strategy strategy, Store store, bool is_interrupted) {
  auto model = std::make_shared<Weights>(std::vector<std::int64_t>{9, 4});
  Options options = on_mesh(world, {2, 2}, strategy);
  options.memory.store = store;
  Sharded sharded = fully_shard(model, world, options);
  optim::AdamW optimizer(sharded, {.lr = 0.1});
  const auto backward = [&] { (model->sum().sin() * (world.rank() + 1)).backward(); };
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (step == 1 && is_interrupted) {
      if (world.rank() == 1) {
        world.publish_failure("for the test");
      } else {
        EXPECT_THROW(backward(), Error);
      }
      world.recover();
    }
    backward();
    optimizer.step();
  }
  const auto full = sharded.full_parameters();
  return torch::cat(model->parameters()).clone();
}

TEST(Mesh, TrainingGoesOnAfterARecovery) {
  for (const Strategy strategy : kHybrids) {
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      run_threads(4, [&](World world) {
        const at::Tensor expected = trained(world, strategy, store, false);
        EXPECT_TRUE(torch::equal(trained(world, strategy, store, true), expected));
      });
    }
  }
}

TEST(Mesh, IsRefusedWhereItIsMissingUselessOrOfAnotherWorld) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{4});
    Options options = test_options({});
    options.strategy = Strategy::kHybrid;
    EXPECT_THAT(error_of([&] { fully_shard(model, world, options); }),
                HasSubstr("hybrid needs Options::mesh"));
    options.mesh = DeviceMesh(world, 2, 1);
    options.strategy = Strategy::kShardGrad;
    EXPECT_THAT(error_of([&] { fully_shard(model, world, options); }),
                HasSubstr("shard-grad has no use for Options::mesh"));
  });
}

}  // namespace
