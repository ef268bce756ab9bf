// SPDX-License-Identifier: Apache-2.0
/// Options::rules: units that are spread, kept or typed in another way than the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/error_of.hpp"
#include "support/strategy_cases.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using testing::AllOf;
using testing::HasSubstr;

std::vector<Strategy> all_strategies() {
  std::vector<Strategy> all;
  for (int i = 0; i < kStrategies; ++i) {
    all.push_back(static_cast<Strategy>(i));
  }
  return all;
}

bool needs_mesh(Strategy strategy) {
  return strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
         strategy == Strategy::kSecondaryShard;
}

TEST(UnitRules, EachStrategyBesideEachOtherTrainsLikeOneProcess) {
  constexpr int kSteps = 3;
  const auto expected = train_alone(kSteps);
  run_threads(4, [&](World world) {
    const DeviceMesh mesh(world, 2, 2);
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      for (const Strategy most : all_strategies()) {
        for (const Strategy other : all_strategies()) {
          SCOPED_TRACE(std::string(to_string(most)) + " beside " + to_string(other));
          Options options = test_options(chain_units());
          options.strategy = most;
          options.rules = {{.units = units_listed({"link1"}), .strategy = other}};
          options.memory.store = store;
          if (needs_mesh(most) || needs_mesh(other)) {
            options.mesh = mesh;
          }
          train_like_one_process(kSteps, world, options, nullptr, expected,
                                 [&](Sharded& sharded, int) {
                                   const Report report = sharded.report();
                                   EXPECT_EQ(report.units[1].strategy, most);
                                   EXPECT_EQ(report.units[2].strategy, other);
                                 });
        }
      }
    }
  });
}

TEST(UnitRules, AReplicatedUnitAmongShardedOnesHoldsAndSendsWhatItIsTo) {
  constexpr std::int64_t kRanks = 4;
  run_threads(kRanks, [](World world) {
    Options options = test_options(chain_units(), /*align_bytes=*/0);
    options.rules = {{.units = units_listed({"link1"}), .strategy = Strategy::kReplicate}};
    Chain model = make_model();
    Sharded sharded = fully_shard(model, world, options);
    const std::int64_t part = slice(kRootNumel, kRanks, 1) + slice(kLinkNumel, kRanks, 1);
    EXPECT_EQ(sharded.report().live[memory::Kind::kShards],
              kBytes * (part + kRanks * slice(kLinkNumel, kRanks, 1)));
    model->forward(rows_of(world.rank(), kRanks)).sum().backward();
    const Counters counters = sharded.report().counters;
    EXPECT_EQ(counters.reduce_scatters, 2);
    EXPECT_EQ(counters.replica_reductions, 1);
    EXPECT_EQ(counters.replica_bytes, 2 * kBytes * kLinkNumel);
    EXPECT_EQ(counters.gather_bytes % (kBytes * kLinkNumel), 0);
  });
}

TEST(UnitRules, TheFirstThatSaysSomethingCounts) {
  run_threads(2, [](World world) {
    Options options = test_options(chain_units());
    options.strategy = Strategy::kShardGrad;
    options.rules = {{.units = units_listed({"link0"}), .keep_gathered = false},
                     {.units = units_matching("link\\d"), .keep_gathered = true, .optional = true},
                     {.units = root_unit(), .strategy = Strategy::kFullShard}};
    Chain model = make_model();
    const Report report = fully_shard(model, world, options).report();
    EXPECT_EQ(report.units[0].strategy, Strategy::kFullShard);
    EXPECT_FALSE(report.units[0].stays_gathered);
    EXPECT_FALSE(report.units[1].stays_gathered);
    EXPECT_TRUE(report.units[1].is_optional);
    EXPECT_TRUE(report.units[2].stays_gathered);
    EXPECT_TRUE(report.units[2].is_optional);
  });
}

/// The chain with link 1 in `type`, cast by hand.
at::Tensor cast_by_hand(Chain& model, at::Tensor x, at::ScalarType type) {
  x = torch::tanh(model->links[0]->linear(model->first(x)));
  const torch::nn::Linear& low = model->links[1]->linear;
  x = torch::tanh(torch::linear(x.to(type), low->weight.to(type), low->bias.to(type)));
  return model->last(x.to(at::kFloat));
}

TEST(UnitRules, AUnitInBfloat16ComputesAsOneProcessThatCasts) {
  constexpr int kSteps = 3, kRanks = 2;
  const auto rows = [](int rank) { return rows_of(rank, kRanks).to(at::kFloat); };
  Chain alone = make_model();
  alone->to(at::kFloat);
  torch::optim::SGD reference(alone->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    for (int rank = 0; rank < kRanks; ++rank) {
      (cast_by_hand(alone, rows(rank), at::kBFloat16).square().mean() / kRanks).backward();
    }
    reference.step();
  }
  run_threads(kRanks, [&](World world) {
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      Options options = test_options(chain_units());
      options.memory.store = store;
      options.rules = {{.units = units_listed({"link1"}), .param = at::kBFloat16}};
      Chain model = make_model();
      model->to(at::kFloat);
      Sharded sharded = fully_shard(model, world, options);
      optim::SGD optimizer(sharded, {.lr = 0.1});
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        sharded.reset_counters();
        model->forward(rows(world.rank())).square().mean().backward();
        EXPECT_EQ(sharded.report().counters.casts, 1) << "of the one unit";
        optimizer.step();
      }
      const Report report = sharded.report();
      EXPECT_EQ(report.units[1].gathered_itemsize, 4);
      EXPECT_EQ(report.units[2].gathered_itemsize, 2);
      EXPECT_EQ(report.units[2].itemsize, 4) << "what the optimizer updates";
      EXPECT_EQ(report.live, report.promise);
      const auto full = sharded.full_parameters();
      for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
        EXPECT_TRUE(torch::allclose(model->parameters()[i], alone->parameters()[i], 1e-5, 1e-6))
            << i;
      }
    }
  });
}

TEST(UnitRules, AUnitMayStayInFloat32AmongLowOnes) {
  run_threads(2, [](World world) {
    Options options = test_options(chain_units());
    options.precision.param = at::kBFloat16;
    options.rules = {{.units = root_unit(), .param = at::kFloat}};
    options.replicate_below = kWidth + 1;
    Chain model = make_model();
    model->to(at::kFloat);
    Sharded sharded = fully_shard(model, world, options);
    std::vector<std::pair<std::string, std::int64_t>> units;
    for (const UnitInfo& unit : sharded.report().units) {
      units.emplace_back(unit.name, unit.gathered_itemsize);
    }
    // Biases are small: they leave their units, but keep their types.
    EXPECT_THAT(units,
                testing::ElementsAre(std::pair("(root)", 4), std::pair("link0", 2),
                                     std::pair("link1", 2), std::pair("(replicated) Float", 4),
                                     std::pair("(replicated) BFloat16 of Float", 2)));
    const at::Tensor y = model->forward(rows_of(world.rank(), 2).to(at::kFloat));
    EXPECT_EQ(y.scalar_type(), at::kFloat) << "the root's last layer";
    y.sum().backward();
  });
}

TEST(UnitRules, AUnitInFloat16NeedsALossScaler) {
  run_threads(1, [](World world) {
    Options options = test_options(chain_units());
    options.rules = {{.units = units_listed({"link1"}), .param = at::kHalf}};
    Chain model = make_model();
    model->to(at::kFloat);
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_THAT(error_of([&] { model->forward(torch::ones({2, kWidth})); }),
                HasSubstr("fsdp::LossScaler"));
  });
}

TEST(UnitRules, RanksThatDifferInOneAreToldWhich) {
  run_threads(2, [](World world) {
    Options options = test_options(chain_units());
    options.rules = {{.units = root_unit(), .keep_gathered = true}};
    if (world.rank() == 1) {
      options.rules.push_back({.units = units_listed({"link1"}), .strategy = Strategy::kReplicate});
    }
    EXPECT_THAT(error_of([&] { fully_shard(make_model(), world, options); }),
                AllOf(HasSubstr("[mismatch]"), HasSubstr("on rank 0 rule 1 is none"),
                      HasSubstr("on rank 1 rule 1 is \"unit \"link1\": strategy replicate\"")));
  });
}

TEST(UnitRules, MistakesAreNamed) {
  run_threads(1, [](World world) {
    const auto error = [&](const UnitRule& rule) {
      Options options = test_options(chain_units());
      options.rules = {{.units = root_unit()}, rule};
      return error_of([&] { fully_shard(make_model(), world, options); });
    };
    EXPECT_THAT(error({.units = units_listed({"link7"})}),
                HasSubstr("Options::rules[1] lists \"link7\""));
    EXPECT_THAT(error({.units = root_unit(), .param = at::kDouble}),
                HasSubstr("rules[1].param is Double"));
    EXPECT_THAT(error({.units = root_unit(), .strategy = Strategy::kHybrid}),
                HasSubstr("hybrid needs Options::mesh"));
  });
}

TEST(UnitRules, ArePrintable) {
  EXPECT_EQ(to_string(UnitRule{.units = units_of<ChainLink>(), .strategy = Strategy::kReplicate}),
            "units of type fsdp::test::ChainLinkImpl: strategy replicate");
  EXPECT_EQ(to_string(UnitRule{.units = units_listed({"a", "b"}),
                               .keep_gathered = true,
                               .optional = false,
                               .param = at::kBFloat16}),
            "units \"a\", \"b\": stay gathered, not optional, gathered as BFloat16");
  EXPECT_EQ(to_string(UnitRule{.units = units_matching("h\\.\\d+"), .keep_gathered = false}),
            "units matching \"h\\.\\d+\": do not stay gathered");
  EXPECT_EQ(to_string(UnitRule{.units = units_larger_than(10), .optional = true}),
            "units of at least 10 elements: optional");
}

TEST(Report, SaysWhatIsThere) {
  run_threads(2, [](World world) {
    Options options = test_options(chain_units());
    options.rules = {{.units = root_unit(), .keep_gathered = true}};
    Chain model = make_model();
    Sharded sharded = fully_shard(model, world, options);
    model->forward(rows_of(world.rank(), 2)).sum().backward();
    EXPECT_THAT(
        to_string(sharded.report()),
        AllOf(HasSubstr("3 units over 2 ranks"), HasSubstr("(root), full-shard, stays gathered\n"),
              HasSubstr("link1, full-shard\n"), HasSubstr("gathers"), HasSubstr("memory now\n"),
              HasSubstr("memory at its peak")));
  });
}

}  // namespace
