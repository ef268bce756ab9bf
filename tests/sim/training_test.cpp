// SPDX-License-Identifier: Apache-2.0
/// Training on simulated accelerators over a transport that works on streams: numbers are those of
/// one process on the CPU, the checker reports nothing, and the host waits for nothing that it need
/// not wait for. What a program does on several streams is part of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fsdp/comm/mesh.hpp"
#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/ranks.hpp"
#include "support/sim/sim.hpp"
#include "support/strategy_name.hpp"

namespace fsdp::test {
namespace {

const SimFirst sim_first;

constexpr int kLinks = 4;
constexpr std::int64_t kWidth = 6;
constexpr int kSteps = 3;
constexpr std::int64_t kRows = 8;  ///< divisible by all numbers of ranks

c10::impl::VirtualGuardImpl guard() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1);
}

/// What `after` gets from now on comes after what `before` was given.
void order(const c10::Stream& before, const c10::Stream& after) {
  c10::Event event(before.device_type());
  event.record(before);
  after.wait(event);
}

/// A block of two layers.
struct BranchImpl : torch::nn::Module {
  explicit BranchImpl(std::int64_t width)
      : left(register_module("left", torch::nn::Linear(width, width))),
        right(register_module("right", torch::nn::Linear(width, width))) {}
  torch::nn::Linear left, right;
};
TORCH_MODULE(Branch);

/// Blocks whose layers run on two streams, as a program may overlap them. The streams come together
/// after each block, or at the end only.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < kLinks; ++i) {
      branches.push_back(register_module("branch" + std::to_string(i), Branch(kWidth)));
    }
  }

  at::Tensor forward(at::Tensor x) {
    at::Tensor y = x;
    fork(x);
    for (Branch& branch : branches) {
      const at::Tensor left = torch::tanh(branch->left(x));
      y = on_side([&] { return torch::tanh(branch->right(y)); });
      x = left;
      if (!joins_late) {
        join(x);
        x = y = x + y;
        fork(x);
      }
    }
    join(x);
    return x + y;
  }

  std::vector<Branch> branches;
  bool joins_late = false;
  std::optional<c10::Stream> side;  ///< none: all on one

 private:
  void fork(const at::Tensor& x) const {
    if (side.has_value()) {
      order(guard().getStream(x.device()), *side);
    }
  }
  void join(const at::Tensor& x) const {
    if (side.has_value()) {
      order(*side, guard().getStream(x.device()));
    }
  }
  template <class Work>
  at::Tensor on_side(Work work) const {
    const c10::OptionalStreamGuard guard_of_side(side);
    return work();
  }
};
TORCH_MODULE(Branches);

at::Tensor rows_of(int rank, int size) {
  return torch::arange(kRows * kWidth, torch::kDouble)
      .mul(0.37)
      .sin()
      .view({kRows, kWidth})
      .narrow(0, rank * (kRows / size), kRows / size);
}

/// Equal weights on every call.
template <class Model>
Model make_model() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(7);
  Model model = [] {
    if constexpr (std::is_same_v<Model, Chain>) {
      return Chain(kLinks, kWidth);
    } else {
      return Model();
    }
  }();
  model->to(torch::kDouble);
  return model;
}

template <class Model>
std::vector<at::Tensor> train_alone(const std::function<void(Model& model)>& configure =
                                        [](Model&) {}) {
  Model model = make_model<Model>();
  configure(model);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model->forward(rows_of(0, 1)).square().mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model->parameters()) {
    parameters.push_back(parameter.detach());
  }
  return parameters;
}

Options options_for(Units units) {
  Options options{.units = std::move(units)};
  options.memory.store = Store::kSlots;
  options.debug.print_promise = false;
  return options;
}

/// What one rank does, and what may be done around it.
template <class Model>
struct Plan {
  Options options;
  std::function<void(Model& model)> configure = [](Model&) {};  ///< of the reference, too
  std::function<void(Model& model)> prepare = [](Model&) {};
  std::function<void(Sharded& sharded)> before_step = [](Sharded&) {};
};

template <class Model>
std::vector<at::Tensor> train_rank(const World& world, const Plan<Model>& run) {
  Model model = make_model<Model>();
  Options options = run.options;
  options.device = rank_device();
  Sharded sharded = fully_shard(model.ptr(), world, options);
  run.configure(model);
  run.prepare(model);
  optim::AdamW optimizer(sharded, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
  const at::Tensor x = to_rank(rows_of(world.rank(), world.size()));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model->forward(x).square().mean().backward();
    run.before_step(sharded);
    optimizer.step();
  }
  const auto full = sharded.full_parameters();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.device(), rank_device());
    parameters.push_back(on_cpu(parameter.detach()).clone());
  }
  return parameters;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 0, 1e-11)) << "parameter " << i;
  }
}

template <class Model>
void expect_parity(int ranks, const Plan<Model>& run) {
  const std::vector<at::Tensor> expected = train_alone<Model>(run.configure);
  on_sim(ranks, [&](const World& world) { expect_equal(train_rank(world, run), expected); });
}

// --- one stream ------------------------------------------------------------------------------

TEST(SimTraining, EqualsOneProcessForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 4}) {
    for (const int prefetch : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, prefetch " + std::to_string(prefetch));
      Plan<Chain> run{.options = options_for(chain_units())};
      run.options.memory.prefetch = prefetch;
      expect_parity(ranks, run);
    }
  }
}

TEST(SimTraining, EqualsOneProcessWithEveryStrategy) {
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGrad, Strategy::kReplicate, Strategy::kHybrid,
        Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
    SCOPED_TRACE(to_string(strategy));
    const std::vector<at::Tensor> expected = train_alone<Chain>();
    on_sim(4, [&](const World& world) {
      Plan<Chain> run{.options = options_for(chain_units())};
      run.options.strategy = strategy;
      if (strategy == Strategy::kHybrid || strategy == Strategy::kHybridOptimizer ||
          strategy == Strategy::kSecondaryShard) {
        run.options.mesh = DeviceMesh(world, 2, 2);
      }
      run.options.replicate_below = kWidth + 1;
      expect_equal(train_rank(world, run), expected);
    });
  }
}

TEST(SimTraining, EqualsOneProcessWithShardsOnTheHost) {
  for (const bool pins : {true, false}) {
    SCOPED_TRACE(pins ? "pinned" : "pageable");
    Plan<Chain> run{.options = options_for(chain_units())};
    run.options.memory.offload = Offload{.pin_memory = pins};
    expect_parity(2, run);
  }
}

// --- several streams: see NOTE [several streams] -----------------------------------------------

Plan<Branches> branches(bool joins_late) {
  return {.options = options_for(units_of<Branch>()),
          .configure = [=](Branches& model) { model->joins_late = joins_late; },
          .prepare = [](Branches& model) { model->side = guard().getNewStream(rank_device()); }};
}

TEST(SimStreams, BlocksThatComputeOnTwoStreamsAreInOrder) {
  for (const bool joins_late : {false, true}) {
    for (const int prefetch : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(prefetch) + (joins_late ? ", joined late" : ""));
      Plan<Branches> run = branches(joins_late);
      run.options.memory.prefetch = prefetch;
      expect_parity(2, run);
    }
  }
}

TEST(SimStreams, SlicesThatAreCastOnOneStreamAreGatheredOnAnother) {
  on_sim(2, [](const World& world) {
    Plan<Branches> run = branches(/*joins_late=*/true);
    run.options.precision.param = at::kBFloat16;
    train_rank(world, run);
  });
}

class SimStrategyStreams : public testing::TestWithParam<Strategy> {};

TEST_P(SimStrategyStreams, ForwardsOnTwoStreamsReadWhatOneOfThemHasCast) {
  on_sim(2, [](const World& world) {
    Chain model = make_model<Chain>();
    Options options = options_for(chain_units());
    options.strategy = GetParam();
    options.precision.param = at::kBFloat16;
    options.device = rank_device();
    Sharded sharded = fully_shard(model.ptr(), world, options);
    const at::Tensor x = to_rank(rows_of(world.rank(), world.size()));
    const torch::NoGradGuard no_grad;
    const c10::Stream main = guard().getStream(rank_device());
    for (const c10::Stream& side :
         {guard().getNewStream(rank_device()), guard().getNewStream(rank_device())}) {
      order(main, side);
      const c10::StreamGuard on_side(side);
      model->forward(x);
    }
    guard().synchronizeDevice(rank_device().index());
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, SimStrategyStreams,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGrad,
                                         Strategy::kReplicate),
                         [](const auto& info) { return name_of(info.param); });

TEST(SimStreams, SecondaryShardsThatOneStreamKeptAreGatheredOnAnother) {
  on_sim(4, [](const World& world) {
    Plan<Branches> run = branches(/*joins_late=*/true);
    run.options.strategy = Strategy::kSecondaryShard;
    run.options.mesh = DeviceMesh(world, 2, 2);
    train_rank(world, run);
  });
}

TEST(SimStreams, ReplicasThatAreRefreshedOnOneStreamAreReadOnAnother) {
  on_sim(4, [](const World& world) {
    Plan<Branches> run = branches(/*joins_late=*/true);
    run.options.strategy = Strategy::kHybridOptimizer;
    run.options.mesh = DeviceMesh(world, 2, 2);
    train_rank(world, run);
  });
}

TEST(SimStreams, AllOfTrainingOnAnotherStreamIsInOrder) {
  const std::vector<at::Tensor> expected = train_alone<Chain>();
  on_sim(2, [&](const World& world) {
    const c10::StreamGuard on_side(guard().getNewStream(rank_device()));
    expect_equal(train_rank(world, Plan<Chain>{.options = options_for(chain_units())}), expected);
  });
}

// --- what the host waits for -------------------------------------------------------------------

/// Host waits of one step in the middle of training.
std::int64_t host_waits_of_a_step(const std::function<void(Sharded&)>& before_step,
                                  Options options = options_for(chain_units())) {
  std::int64_t waits = 0;
  on_sim(2, [&](const World& world) {
    int step = 0;
    Plan<Chain> run{.options = options};
    run.before_step = [&](Sharded& sharded) {
      before_step(sharded);
      const sim::Counts counts = sim::take_counts(rank_device().index());
      EXPECT_EQ(counts.stream_records, 0);
      if (++step == kSteps && world.rank() == 0) {
        waits = counts.host_waits;
      }
    };
    train_rank(world, run);
  });
  return waits;
}

TEST(SimWaits, AStepWaitsForNoStream) {
  EXPECT_EQ(host_waits_of_a_step([](Sharded&) {}), 0);
}

TEST(SimWaits, ClippingWaitsOnceForAllGradients) {
  EXPECT_EQ(host_waits_of_a_step([](Sharded& sharded) { clip_grad_norm_(sharded, 1e6); }), 1);
}

// --- planted faults ------------------------------------------------------------------------------

TEST(SimFaults, ATransportThatForgetsToWaitIsReported) {
  for (const StreamFault fault : {StreamFault::kNoInputEvent, StreamFault::kNoOutputEvent}) {
    const std::string reports = reports_on_sim(2, fault, [](const World& world) {
      train_rank(world, Plan<Chain>{.options = options_for(chain_units())});
    });
    EXPECT_THAT(reports, testing::HasSubstr("is not ordered after"));
    EXPECT_THAT(reports, testing::HasSubstr("of link0"));
  }
}

// --- bad input -----------------------------------------------------------------------------------

TEST(SimRefusals, SharedMemoryIsOfTheHost) {
  on_sim(2, [](const World& world) {
    Options options = options_for(chain_units());
    options.memory.store = Store::kAliased;
    options.device = rank_device();
    try {
      fully_shard(make_model<Chain>().ptr(), world, options);
      FAIL() << "aliased memory on a device";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.text(), testing::HasSubstr("Store::kAliased and a module on sim:"));
    }
  });
}

TEST(SimRefusals, TensorsOnTwoDevicesAreNamed) {
  on_sim(2, [](const World& world) {
    Chain model = make_model<Chain>();
    model->last->to(rank_device());
    try {
      fully_shard(model.ptr(), world, options_for(chain_units()));
      FAIL() << "two devices";
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), testing::AllOf(testing::HasSubstr("\"last.weight\" is on sim:"),
                                               testing::HasSubstr("on cpu: one device a rank")));
    }
  });
}

TEST(SimRefusals, RanksOnDevicesOfTwoTypesAreToldOnAllRanks) {
  on_sim(2, [](const World& world) {
    Options options = options_for(chain_units());
    options.device = world.rank() == 0 ? rank_device() : c10::Device(c10::kCPU);
    try {
      fully_shard(make_model<Chain>().ptr(), world, options);
      FAIL() << "two types of devices";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.text(), testing::HasSubstr("device is sim; on rank 1 device is cpu"));
    }
  });
}

TEST(SimRefusals, ATransportOfTheHostRefusesTheModuleOnAllRanks) {
  sim::start({.mode = sim::mode_of_environment()});
  run_threads(2, [](const World& world) {
    Options options = options_for(chain_units());
    options.device = sim::device(world.rank());
    try {
      fully_shard(make_model<Chain>().ptr(), world, options);
      FAIL() << "threads over devices";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.text(), testing::HasSubstr("the module is on sim:"));
    }
  });
}

TEST(SimRefusals, TooLittleMemoryOnOneRankIsToldOnAll) {
  sim::start({.mode = sim::mode_of_environment()});
  sim::limit_memory(1, 4096);
  std::vector<std::string> texts(2);
  on_sim(2, [&](const World& world) {
    Options options = options_for(chain_units());
    options.device = rank_device();
    try {
      fully_shard(make_model<Chain>().ptr(), world, options);
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.text();
    }
    sim::limit_memory(1, sim::kBytesPerDevice);
    world.recover();
    train_rank(world, Plan<Chain>{.options = options_for(chain_units())});
  });
  for (const std::string& text : texts) {
    EXPECT_THAT(text, testing::HasSubstr("rank 1 has too little memory on sim:1"));
  }
}

TEST(SimRefusals, AModuleThatWasMovedAfterwardsIsNamed) {
  on_sim(2, [](const World& world) {
    Chain model = make_model<Chain>();
    Options options = options_for(chain_units());
    options.device = rank_device();
    Sharded sharded = fully_shard(model.ptr(), world, options);
    model->last->weight.set_data(torch::zeros({kWidth, kWidth}, torch::kDouble));
    try {
      model->forward(to_rank(rows_of(world.rank(), 2)));
      FAIL() << "the module has been moved";
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), testing::HasSubstr("\"last.weight\" no longer lives"));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
