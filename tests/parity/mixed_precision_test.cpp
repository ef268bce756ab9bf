// SPDX-License-Identifier: Apache-2.0
/// Mixed precision against one process that does the same arithmetic by hand: float32 masters, a
/// bfloat16 copy to compute with, each rank's gradients summed in float32 in rank order.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

constexpr int kSteps = 3;

Options bf16_options(const Units& units, Store store = Store::kSlots) {
  Options options = test_options(units);
  options.memory.store = store;
  options.precision.param = at::kBFloat16;
  return options;
}

Snapshot train_by_hand(const SubjectKind& kind, int size, const OptimizerFactory& make) {
  const Subject master = make_subject(kind, at::kFloat);
  Subject low = make_subject(kind, at::kFloat);
  low.x = low.x.is_floating_point() ? low.x.to(at::kBFloat16) : low.x;
  low.module->to(at::kBFloat16);
  auto optimizer = make(master.parameters());
  Snapshot snapshot;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& parameter : master.parameters()) {
      sums.push_back(torch::zeros_like(parameter));
    }
    for (int rank = 0; rank < size; ++rank) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        low.parameters()[i].detach().copy_(master.parameters()[i].detach());
        low.parameters()[i].mutable_grad().reset();
      }
      low.loss_of(rank, size).backward();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += low.parameters()[i].grad().to(at::kFloat);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      master.parameters()[i].mutable_grad() = sums[i] / size;
    }
    if (step == 0) {
      for (const at::Tensor& sum : sums) {
        snapshot.first_gradients.push_back(sum / size);
      }
    }
    optimizer->step();
  }
  for (const at::Tensor& parameter : master.parameters()) {
    snapshot.parameters.push_back(parameter.detach().clone());
  }
  return snapshot;
}

void expect_same_bits(const std::vector<at::Tensor>& actual,
                      const std::vector<at::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(actual[i], expected[i]))
        << what << " " << i << " differs by "
        << (actual[i] - expected[i]).abs().max().item<double>();
  }
}

class MixedPrecisionParity : public testing::TestWithParam<int> {};

TEST_P(MixedPrecisionParity, SameBitsAsOneProcessThatDoesTheSame) {
  const int size = GetParam();
  for (const SubjectKind& kind : {odd_mlp(), tiny_gpt(/*tied=*/true), unit_used_twice(),
                                  nested_units(), convolution(), lstm()}) {
    const Snapshot expected = train_by_hand(kind, size, adam());
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      SCOPED_TRACE(kind.name + (store == Store::kSlots ? " in slots" : " in shared memory"));
      run_threads(size, [&](World world) {
        const Subject probe = make_subject(kind, at::kFloat);
        const Snapshot actual = train_sharded(kind, world, bf16_options(probe.units, store), adam(),
                                              kSteps, at::kFloat);
        if (world.rank() == 0) {
          expect_same_bits(actual.first_gradients, expected.first_gradients, "gradient");
          expect_same_bits(actual.parameters, expected.parameters, "parameter");
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MixedPrecisionParity, testing::Values(1, 2, 3));

/// TorchScript differentiates by itself, with operands as they came: they come in the low type.
TEST(MixedPrecision, AScriptTakesInputsOfTheLowType) {
  run_threads(2, [](World world) {
    const auto gradients = [&](bool low) {
      Subject subject = make_subject(script_module(), at::kFloat);
      Options options = bf16_options(subject.units);
      if (low) {
        subject.x = subject.x.to(at::kBFloat16);
      } else {
        options.precision.param.reset();
      }
      Sharded sharded = subject.shard(world, options);
      for (int run = 0; run < 3; ++run) {  // profiled, then optimised
        sharded.zero_grad();
        subject.loss_of(world.rank(), 2).backward();
      }
      return whole_gradients(sharded);
    };
    const auto low = gradients(true);
    const auto whole = gradients(false);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LE((low[i] - whole[i]).abs().max().item<float>(),
                0.05 * whole[i].abs().max().item<float>());
    }
  });
}

TEST(MixedPrecision, HalfTheBytesAreGatheredAndEachChangeIsCastOnce) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(2, [&](World world) {
      const auto bytes_of_a_step = [&](bool low) {
        const Subject subject = make_subject(tiny_gpt(false), at::kFloat);
        Options options = bf16_options(subject.units, store);
        if (!low) {
          options.precision.param.reset();
        }
        Sharded sharded = subject.shard(world, options);
        optim::AdamW optimizer(sharded);
        for (int step = 0; step < 3; ++step) {
          sharded.reset_counters();
          subject.loss_of(world.rank(), 2).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        const auto units = static_cast<std::int64_t>(sharded.report().units.size());
        EXPECT_EQ(sharded.report().counters.casts, low ? units : 0);
        EXPECT_EQ(sharded.report().peak, sharded.report().promise);
        const memory::Bytes promise = sharded.report().promise;
        EXPECT_EQ(promise[memory::Kind::kLowPrecision],
                  low ? promise[memory::Kind::kShards] / 2 : 0);
        return std::pair(sharded.report().counters, promise[memory::Kind::kGatherSlots]);
      };
      const auto [whole, whole_slots] = bytes_of_a_step(false);
      const auto [half, half_slots] = bytes_of_a_step(true);
      EXPECT_EQ(half.gathers, whole.gathers);
      EXPECT_EQ(half.gather_bytes * 2, whole.gather_bytes);
      EXPECT_EQ(half.reduce_bytes, whole.reduce_bytes);
      EXPECT_EQ(half_slots * 2, whole_slots);
    });
  }
}

/// Sums over replicas run in another order, and a master that differs in its last bit may round to
/// the next bfloat16: so gradients agree to float32 and trained weights to bfloat16.
TEST(MixedPrecision, EachStrategyTrainsAlike) {
  const SubjectKind kind = nested_units();
  const Snapshot expected = train_by_hand(kind, 4, adam());
  for (const Strategy strategy : {Strategy::kShardGrad, Strategy::kReplicate, Strategy::kHybrid,
                                  Strategy::kHybridOptimizer, Strategy::kSecondaryShard}) {
    for (const Store store : {Store::kSlots, Store::kAliased}) {
      SCOPED_TRACE(std::string(to_string(strategy)) + (store == Store::kSlots ? "" : ", shared"));
      run_threads(4, [&](World world) {
        const Subject probe = make_subject(kind, at::kFloat);
        Options options = bf16_options(probe.units, store);
        options.strategy = strategy;
        if (strategy != Strategy::kShardGrad && strategy != Strategy::kReplicate) {
          options.mesh = DeviceMesh(world, 2, 2);
        }
        const Snapshot actual = train_sharded(kind, world, options, adam(), kSteps, at::kFloat);
        for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
          EXPECT_TRUE(torch::allclose(actual.first_gradients[i], expected.first_gradients[i],
                                      /*rtol=*/1e-5, /*atol=*/1e-7))
              << i;
          EXPECT_TRUE(torch::allclose(actual.parameters[i], expected.parameters[i],
                                      /*rtol=*/0.01, /*atol=*/0.01))
              << i;
        }
      });
    }
  }
}

/// What is saved are the masters: float32, whatever operators take, at any world size.
TEST(MixedPrecision, ACheckpointHoldsTheMasters) {
  const TemporaryDirectory directory;
  const SubjectKind kind = convolution();
  const Units units = make_subject(kind, at::kFloat).units;
  Snapshot trained;
  run_threads(2, [&](World world) {
    CheckpointedRun run(kind, world, bf16_options(units), adam(), at::kFloat);
    run.train(3);
    run.save(directory.path(), 3);
    const Snapshot own = run.snapshot();
    if (world.rank() == 0) {
      trained = own;
    }
  });
  for (const int size : {1, 3}) {
    for (const bool low : {true, false}) {
      run_threads(size, [&](World world) {
        Options options = bf16_options(units);
        if (!low) {
          options.precision = {};
        }
        CheckpointedRun run(kind, world, options, adam(), at::kFloat);
        run.load(directory.path());
        expect_same_bits(run.snapshot().parameters, trained.parameters, "loaded parameter");
      });
    }
  }
}

/// A linear layer that remembers which types met in it.
struct Watched : nn::Module {
  Watched() : linear(register_module("linear", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x);
    seen.push_back(y.scalar_type());
    return y;
  }
  nn::Linear linear;
  std::vector<at::ScalarType> seen;
};

TEST(MixedPrecision, Fault074_OnlyFloatingOperandsAreCastAndResultsAsAsked) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Watched>();
    Sharded sharded = fully_shard(model, world, bf16_options({}));
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor x = torch::randn({2, 4}, type).requires_grad_();
      model->forward(x).sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), type);
    }
    EXPECT_EQ(model->seen, std::vector<at::ScalarType>(3, at::kBFloat16));

    auto embedding = std::make_shared<nn::EmbeddingImpl>(5, 4);
    Options options = bf16_options({});
    options.precision.output = at::kFloat;
    Sharded other = fully_shard(std::static_pointer_cast<nn::Module>(embedding), world, options);
    const at::Tensor ids = torch::tensor({1, 4}, at::kLong);
    const at::Tensor rows = embedding->forward(ids);
    EXPECT_EQ(rows.scalar_type(), at::kFloat);
    EXPECT_EQ(ids.scalar_type(), at::kLong);
    const at::Tensor mask = torch::tensor({true, false, true, false});
    EXPECT_TRUE(torch::equal(embedding->weight.masked_fill(mask, 0.0).select(1, 0),
                             torch::zeros({5}, at::kBFloat16)));
    // Of weights alone the result keeps the type, or the next operator would meet two.
    EXPECT_EQ(embedding->weight.mul(2.0).scalar_type(), at::kBFloat16);
  });
}

TEST(MixedPrecision, FullParametersShowTheMasters) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(2, [&](World world) {
      auto model = std::make_shared<Watched>();
      const at::Tensor whole = torch::rand({4, 4}) + 1e-4;
      {
        torch::NoGradGuard no_grad;
        model->linear->weight.copy_(whole);
      }
      const void* identity = model->linear->weight.unsafeGetTensorImpl();
      Sharded sharded = fully_shard(model, world, bf16_options({}, store));
      const at::Tensor kept = model->linear->weight.detach();
      {
        const auto scope = sharded.full_parameters(/*writeback=*/true);
        EXPECT_EQ(model->linear->weight.scalar_type(), at::kFloat);
        if (world.rank() == 0) {
          EXPECT_TRUE(torch::equal(model->linear->weight, whole));
        }
        EXPECT_TRUE(sharded.is_sharded(model->linear->weight));
        EXPECT_EQ(model->forward(torch::ones({1, 4}, at::kBFloat16)).scalar_type(), at::kFloat);
        // A view of the low-precision weight has no memory now: it throws instead of reading bits.
        EXPECT_NE(error_of([&] { kept.sum().item<float>(); }).find("linear.weight"),
                  std::string::npos);
        torch::NoGradGuard no_grad;
        model->linear->weight.fill_(1.0 + 1e-4);
      }
      EXPECT_EQ(model->linear->weight.scalar_type(), at::kBFloat16);
      EXPECT_EQ(model->linear->weight.unsafeGetTensorImpl(), identity);
      const at::Tensor shard = sharded.parameters()[0].detach().clone();
      EXPECT_TRUE(torch::equal(shard, torch::full_like(shard, 1.0 + 1e-4)));
      EXPECT_EQ(model->linear->weight.sum().item<float>(), 16.0F);
      model->forward(torch::ones({1, 4})).sum().backward();  // gradients still find their way
      EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    });
  }
}

}  // namespace
