// SPDX-License-Identifier: Apache-2.0
/// Options::offload: nothing changes where there is one memory; with two, kept apart by a copier
/// that is slow and works on a thread of its own, numbers, transfers and memory are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/engine/shard_access.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"
#include "support/slow_copier.hpp"
#include "support/strategy_cases.hpp"
#include "support/weights.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using namespace std::chrono_literals;
using memory::Kind;
using testing::HasSubstr;

constexpr int kSteps = 5;

Offload slow(std::chrono::milliseconds latency = 1ms) {
  return {.copier = std::make_shared<SlowCopier>(latency)};
}

// --- one memory ------------------------------------------------------------------------------

struct Seen {
  std::vector<at::Tensor> weights;
  Counters counters;
  memory::Bytes promise, live, peak;
};

Seen train(const Case& of, const World& world, bool offloads) {
  Chain model = make_model();
  Options options = options_of(of, world, 128);
  if (offloads) {
    options.memory.offload.emplace();
  }
  Sharded sharded = fully_shard(model, world, options);
  optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    model->forward(rows_of(world.rank(), world.size())).square().mean().backward();
    optimizer.step();
  }
  Seen seen{{},
            sharded.report().counters,
            sharded.report().promise,
            sharded.report().live,
            sharded.report().peak};
  const auto full = sharded.full_parameters();
  for (const at::Tensor& parameter : model->parameters()) {
    seen.weights.push_back(parameter.detach().clone());
  }
  return seen;
}

class OffloadOnOneMemory : public testing::TestWithParam<Case> {};

TEST_P(OffloadOnOneMemory, IsAnIdentity) {
  run_threads(GetParam().size(), [&](World world) {
    const Seen without = train(GetParam(), world, false), with = train(GetParam(), world, true);
    for (std::size_t i = 0; i < with.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(with.weights[i], without.weights[i])) << i;
    }
    static_assert(sizeof(Counters) % sizeof(std::int64_t) == 0, "without gaps");
    EXPECT_EQ(std::memcmp(&with.counters, &without.counters, sizeof(Counters)), 0);
    EXPECT_EQ(with.counters.transfers, 0);
    EXPECT_EQ(with.promise, without.promise);
    EXPECT_EQ(with.live, without.live);
    EXPECT_EQ(with.peak, without.peak);
  });
}

INSTANTIATE_TEST_SUITE_P(AllMeshes, OffloadOnOneMemory, testing::ValuesIn(cases({1, 2, 3, 4})),
                         [](const auto& tested) { return tested.param.name(); });

// --- two memories ----------------------------------------------------------------------------

/// Bytes of this rank's slices of all units: of what it owns, and of what it gives to gathers.
struct Slices {
  std::int64_t own, give, largest_own, give_of_link;
};

Slices slices_of(const Case& of, std::int64_t align_bytes) {
  const std::int64_t align = std::max<std::int64_t>(1, align_bytes / kBytes);
  const std::int64_t root = slice(kRootNumel, of.size(), align);
  const std::int64_t link = slice(kLinkNumel, of.size(), align);
  const std::int64_t all = kBytes * (root + kLinks * link);
  const int give = of.strategy == Strategy::kReplicate ? of.size()
                   : of.is_hybrid()                    ? of.replicate
                                                       : 1;
  const int own = of.strategy == Strategy::kHybridOptimizer ? 1 : give;
  return {own * all, give * all, kBytes * own * std::max(root, link), kBytes * give * link};
}

bool has_both_stages(const Case& of) { return of.gathers() && of.reduces_over_replicas(); }

void expect_transfers(const Case& of, const Counters& counters, std::int64_t align_bytes,
                      int step) {
  const Slices slices = slices_of(of, align_bytes);
  const bool is_once = of.strategy == Strategy::kShardGrad ||
                       (of.strategy == Strategy::kSecondaryShard && of.replicate > 1);
  const std::int64_t gathers = is_once ? 1 : 2;  // of each unit
  // Up, then the gradient's way down.
  std::int64_t transfers = kUnits * ((of.gathers() ? gathers : 1) + 1);
  std::int64_t bytes = (of.gathers() ? gathers * slices.give : slices.own) + slices.own;
  if (of.gathers() && !is_once && step > 0) {  // the last link stays for backward
    transfers -= 1;
    bytes -= slices.give_of_link;
  }
  if (of.gathers() && of.strategy == Strategy::kHybridOptimizer && of.replicate > 1) {
    transfers += kUnits * 2;  // replicas exchange new weights on the device
    bytes += slices.own + slices.give;
  }
  EXPECT_EQ(counters.transfers, transfers);
  EXPECT_EQ(counters.transfer_bytes, bytes);
}

memory::Bytes expected_offloaded(const Case& of, std::int64_t align_bytes) {
  const Slices slices = slices_of(of, align_bytes);
  memory::Bytes expected = expected_memory(of, align_bytes);
  const std::int64_t areas = (has_both_stages(of) ? 3 : 2) * slices.largest_own;
  expected[Kind::kOffloadHost] = expected[Kind::kOffloadDevice] = areas;
  if (!of.gathers()) {
    expected[Kind::kOffloadDevice] += slices.give;
    expected[Kind::kSecondary] = 0;
  } else if (of.is_hybrid()) {
    expected[Kind::kOffloadHost] += std::exchange(expected[Kind::kSecondary], 0);
  }
  return expected;
}

class Offloaded : public testing::TestWithParam<Case> {};

TEST_P(Offloaded, EqualsOneProcessInNumbersAndItsFormulasInTransfersAndMemory) {
  const Case& of = GetParam();
  const std::vector<at::Tensor> expected = train_alone(kSteps);
  for (const std::int64_t align_bytes : {0, 128}) {
    run_threads(of.size(), [&](World world) {
      SCOPED_TRACE("rank " + std::to_string(world.rank()));
      Options options = options_of(of, world, align_bytes);
      options.memory.offload = slow();
      auto* copier = static_cast<SlowCopier*>(options.memory.offload->copier.get());
      const memory::Bytes memory = expected_offloaded(of, align_bytes);
      train_like_one_process(
          kSteps, world, options, &memory, expected, [&](Sharded& sharded, int step) {
            EXPECT_EQ(copier->left(), 0) << "when backward returns all has arrived";
            expect_transfers(of, sharded.report().counters, align_bytes, step);
          });
    });
  }
}

std::vector<Case> with_slots() {
  std::vector<Case> all = cases({1, 2, 3, 4});
  std::erase_if(all, [](const Case& of) { return of.store != Store::kSlots; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(AllMeshes, Offloaded, testing::ValuesIn(with_slots()),
                         [](const auto& tested) { return tested.param.name(); });

TEST(Offload, HostAndDeviceBytesAreToldApart) {
  memory::Bytes bytes;
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    bytes[static_cast<Kind>(kind)] = std::int64_t{1} << kind;
  }
  std::int64_t expected = 0;
  for (const Kind kind : {Kind::kShards, Kind::kLowPrecision, Kind::kGradShards, Kind::kMoments,
                          Kind::kOffloadHost}) {
    expected += std::int64_t{1} << static_cast<int>(kind);
  }
  EXPECT_EQ(memory::on_host(bytes).total(), expected);
}

// --- gradients -------------------------------------------------------------------------------

TEST(Offload, Fault016_SyncedMicroBatchesAddUp) {
  for (const Case& of : {Case{Strategy::kFullShard, 1, 2}, Case{Strategy::kReplicate, 1, 2},
                         Case{Strategy::kHybrid, 2, 1}, Case{Strategy::kHybridOptimizer, 2, 2},
                         Case{Strategy::kHybrid, 2, 2}}) {
    SCOPED_TRACE(of.name());
    run_threads(of.size(), [&](World world) {
      auto model = std::make_shared<Weights>(std::vector<std::int64_t>{5, 7});
      Options options = options_of(of, world, 0);
      options.units = {};
      options.memory.offload = slow(5ms);
      Sharded sharded = fully_shard(model, world, options);
      const auto expect_gradients = [&](double value) {
        for (const at::Tensor& gradient : whole_gradients(sharded)) {
          EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, value))) << gradient;
        }
      };
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        for (const double micro_batch : {1.0, 2.0, 3.0}) {
          (model->sum() * micro_batch).backward();
        }
        expect_gradients(6);
      }
      // A gradient that the program put in its place is what is added to.
      for (const at::Tensor& shard : sharded.parameters()) {
        shard.mutable_grad() = torch::full_like(shard, 100).detach();
      }
      model->sum().backward();
      expect_gradients(101);
      // What was deferred, in every way, is a part of the sum.
      sharded.zero_grad();
      for (const GradientSync sync : {GradientSync::kEveryBackward, GradientSync::kDeferReplicate,
                                      GradientSync::kDeferAll, GradientSync::kEveryBackward}) {
        sharded.set_gradient_sync(sync);
        model->sum().backward();
      }
      expect_gradients(4);
    });
  }
}

TEST(Offload, Fault095_TheStepWaitsForTransfers) {
  const Snapshot expected = train_reference(odd_mlp(), 2, adam(), 5);
  run_threads(2, [&](World world) {
    Options options = test_options(units_listed({"a", "b"}));
    options.memory.offload = slow(50ms);
    expect_parity(train_sharded(odd_mlp(), world, options, adam(), 5), expected);
  });
}

TEST(Offload, Fault089_RanksWithEmptyShardsStepToo) {
  const Snapshot expected = train_reference(rows({1, 9}), 4, adam(), 3);
  run_threads(4, [&](World world) {
    Options options = test_options({});
    options.memory.offload = slow();
    expect_parity(train_sharded(rows({1, 9}), world, options, adam(), 3), expected);
  });
}

TEST(Offload, RealModelsTrain) {
  for (const SubjectKind& kind : {tiny_gpt(true), unit_used_twice(), nested_units(), lstm()}) {
    SCOPED_TRACE(kind.name);
    const Snapshot expected = train_reference(kind, 3, adam(), 3);
    for (const int prefetch : {0, 1, 2}) {
      run_threads(3, [&](World world) {
        Options options = test_options(make_subject(kind).units, 0, prefetch);
        options.memory.offload = slow();
        expect_parity(train_sharded(kind, world, options, adam(), 3), expected);
      });
    }
  }
}

class OffloadedProcesses : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, OffloadedProcesses, testing::Values("gloo", "shm"),
                         [](const auto& tested) { return tested.param; });

TEST_P(OffloadedProcesses, EqualOneProcess) {
  for (const auto& result : run_processes(3, "offloaded", [](int) {
         const World world = init({.transport = GetParam()});
         for (const SubjectKind& kind : all_subject_kinds()) {
           SCOPED_TRACE(kind.name);
           const Snapshot expected = train_reference(kind, 3, adam(), 3);
           Options options = test_options(make_subject(kind).units, 0, 2);
           options.memory.offload = slow();
           expect_parity(train_sharded(kind, world, options, adam(), 3), expected);
         }
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

// --- weights ---------------------------------------------------------------------------------

TEST(Offload, APrefetchedTransferIsNotWaitedForBeforeItsUnitIsTouched) {
  run_threads(1, [](World world) {
    std::vector<int> touches_between;
    int touches = 0;
    std::vector<int> at_start;
    const auto note = [&](const char* what, std::uint64_t) {
      if (std::string(what) == "start") {
        at_start.push_back(touches);
      } else {
        touches_between.push_back(touches - at_start[touches_between.size()]);
      }
    };
    Chain model = make_model();
    Options options = test_options(chain_units());
    options.memory.offload.emplace();
    options.memory.offload->copier = std::make_shared<SlowCopier>(0ms, note);
    options.debug.observer = [&](const trace::Event& event) {
      touches += event.kind == trace::EventKind::kTouch ? 1 : 0;
    };
    Sharded sharded = fully_shard(model, world, options);
    const torch::NoGradGuard no_grad;
    model->forward(rows_of(0, 1));
    sharded.reshard();
    at_start.clear();
    touches_between.clear();
    model->forward(rows_of(0, 1));
    // The root for itself; the links and the root again while the one before each computes.
    EXPECT_THAT(touches_between, testing::ElementsAre(0, 1, 1, 1));
  });
}

TEST(Offload, LowPrecisionWeightsAreCastBeforeTheyMove) {
  run_threads(2, [](World world) {
    std::int64_t bytes[2];
    for (const bool is_low : {false, true}) {
      Chain model = make_model();
      model->to(torch::kFloat);
      Options options = test_options(chain_units());
      options.memory.offload = slow();
      if (is_low) {
        options.precision.param = at::kBFloat16;
      }
      Sharded sharded = fully_shard(model, world, options);
      optim::SGD optimizer(sharded, {.lr = 0.1});
      for (int step = 0; step < 2; ++step) {
        const at::Tensor before = sharded.shard_access()->flats()[0].shard.clone();
        sharded.reset_counters();
        const torch::NoGradGuard no_grad;
        model->forward(rows_of(world.rank(), 2).to(torch::kFloat));
        sharded.reshard();
        bytes[is_low ? 1 : 0] = sharded.report().counters.transfer_bytes;
        sharded.shard_access()->flats()[0].shard.add_(1.0);
        const auto full = sharded.full_parameters();
        EXPECT_EQ(model->parameters()[0].scalar_type(), at::kFloat);
        EXPECT_TRUE(torch::equal(sharded.shard_access()->flats()[0].shard, before + 1.0));
      }
    }
    EXPECT_EQ(bytes[0], 2 * bytes[1]);
  });
}

TEST(Offload, EditsOfWholeWeightsReachTheShards) {
  for (const Case& of : with_slots()) {
    SCOPED_TRACE(of.name());
    run_threads(of.size(), [&](World world) {
      Chain model = make_model();
      Options options = options_of(of, world, 0);
      options.memory.offload = slow();
      Sharded sharded = fully_shard(model, world, options);
      const torch::NoGradGuard no_grad;
      {
        const auto full = sharded.full_parameters(/*writeback=*/true);
        for (at::Tensor& parameter : model->parameters()) {
          parameter.fill_(3.0);
        }
      }
      for (const NamedShard& of_rank : sharded.named_parameters()) {
        EXPECT_TRUE(of_rank.shard.eq(3.0).equal(torch::ones_like(of_rank.shard).to(torch::kBool)));
      }
      const at::Tensor y = model->forward(torch::zeros({1, kWidth}, torch::kDouble));
      // Three of bias, then five times three times tanh's and three, twice, and once more at the
      // end.
      at::Tensor by_hand = torch::full({1, kWidth}, 3.0, torch::kDouble);
      for (int link = 0; link < kLinks; ++link) {
        by_hand = torch::tanh(by_hand.sum() * 3.0 + 3.0).expand({1, kWidth});
      }
      EXPECT_TRUE(torch::allclose(y, (by_hand.sum() * 3.0 + 3.0).expand({1, kWidth})));
      sharded.reshard();
    });
  }
}

TEST(Offload, AliasedWeightsAreRefused) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weights>(std::vector<std::int64_t>{4});
    Options options = test_options({});
    options.memory.store = Store::kAliased;
    options.memory.offload = slow();
    EXPECT_THAT(error_of([&] { fully_shard(model, world, options); }),
                HasSubstr("Options::offload with Store::kAliased"));
  });
}

TEST(Offload, AFailedTransferIsToldOnAllRanksAndTheyRecover) {
  run_threads(2, [](World world) {
    Chain model = make_model();
    Options options = test_options(chain_units());
    options.memory.offload = slow();
    auto* copier = static_cast<SlowCopier*>(options.memory.offload->copier.get());
    Sharded sharded = fully_shard(model, world, options);
    const auto step = [&] {
      sharded.zero_grad();
      model->forward(rows_of(world.rank(), 2)).square().mean().backward();
    };
    step();
    const std::vector<at::Tensor> expected = whole_gradients(sharded);
    if (world.rank() == 1) {
      copier->fail_at(5);
    }
    EXPECT_THAT(error_of(step), HasSubstr("the transfer failed")) << "rank " << world.rank();
    world.recover();
    step();
    const std::vector<at::Tensor> actual = whole_gradients(sharded);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  });
}

}  // namespace
