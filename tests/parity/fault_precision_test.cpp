// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems in mixed precision, by their number in docs/reference/faults.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

/// Each element's gradient is the factor that forward gets.
struct Weight : nn::Module {
  explicit Weight(std::int64_t numel, at::ScalarType type = at::kFloat)
      : weight(register_parameter("weight", torch::ones({numel}, type))) {}
  at::Tensor forward(double factor) { return (weight * torch::full({1}, factor)).sum(); }
  at::Tensor weight;
};

Options low_options(at::ScalarType param, std::optional<at::ScalarType> reduce = {}) {
  Options options = test_options({});
  options.precision.param = param;
  options.precision.reduce = reduce;
  options.precision.allow_unscaled = true;
  return options;
}

TEST(FaultPrecision, Fault025_ReductionInFloat32NeitherOverflowsNorVanishes) {
  for (const double gradient : {30000.0, 6e-8}) {
    run_threads(8, [&](World world) {
      auto model = std::make_shared<Weight>(16);
      Sharded sharded = fully_shard(model, world, low_options(at::kHalf));
      model->forward(gradient).backward();
      const at::Tensor own = sharded.parameters()[0].grad().clone();
      const auto rounded = torch::full_like(own, gradient).to(at::kHalf).to(at::kFloat);
      if (own.numel() > 0) {
        EXPECT_GT(rounded[0].item<double>(), 0.0);
      }
      EXPECT_TRUE(torch::equal(own, rounded)) << own;
    });
  }
}

TEST(FaultPrecision, Fault026_ReductionInFloat32KeepsSmallGradientsBesideALargeOne) {
  for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    run_threads(8, [&](World world) {
      auto model = std::make_shared<Weight>(16);
      Sharded sharded = fully_shard(model, world, low_options(at::kBFloat16, reduce));
      sharded.reset_counters();
      model->forward(world.rank() == 0 ? 256.0 : 1.0).backward();
      const at::Tensor own = sharded.parameters()[0].grad().clone();
      EXPECT_TRUE(torch::equal(own, torch::full_like(own, 32.875))) << own;
      EXPECT_EQ(sharded.report().counters.reduce_bytes, 16 * (reduce == at::kFloat ? 4 : 2));
    });
  }
}

TEST(FaultPrecision, Fault026_Bfloat16OnTheWireRoundsEachRanksGradientOnce) {
  run_threads(3, [](World world) {
    auto model = std::make_shared<Weight>(7);
    Sharded sharded = fully_shard(model, world, low_options(at::kFloat, at::kBFloat16));
    const double gradient = 1.0 / 3.0 + world.rank();
    model->forward(gradient).backward();
    const double exact = 1.0 / 3.0 + 1.0;
    for (const at::Tensor& own : {sharded.parameters()[0].grad().clone()}) {
      EXPECT_TRUE(own.sub(exact).abs().le(exact / 512).all().item<bool>()) << own;
      EXPECT_FALSE(own.eq(static_cast<float>(exact)).any().item<bool>());
    }
  });
}

TEST(FaultPrecision, Fault027_GradientsHaveTheOptimizersTypeWhateverElse) {
  for (const at::ScalarType param : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
      for (const Store store : {Store::kSlots, Store::kAliased}) {
        run_threads(2, [&](World world) {
          auto model = std::make_shared<Weight>(5);
          Options options = low_options(param, reduce);
          options.memory.store = store;
          Sharded sharded = fully_shard(model, world, options);
          torch::optim::AdamW stock(sharded.parameters(), torch::optim::AdamWOptions(0.1));
          optim::AdamW own(sharded, {.lr = 0.1});
          for (int step = 0; step < 2; ++step) {
            sharded.zero_grad();
            model->forward(1.0).backward();
            EXPECT_EQ(model->weight.scalar_type(), param);
            EXPECT_EQ(sharded.parameters()[0].scalar_type(), at::kFloat);
            EXPECT_EQ(sharded.parameters()[0].grad().scalar_type(), at::kFloat);
            stock.step();
            own.step();
          }
          EXPECT_TRUE(sharded.parameters()[0].detach().clone().lt(0.9).all().item<bool>());
        });
      }
    }
  }
}

TEST(FaultPrecision, Fault051_AnEditIsSeenByTheNextEvaluation) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    for (const bool through_scope : {false, true}) {
      run_threads(2, [&](World world) {
        auto model = std::make_shared<Weight>(6);
        Options options = low_options(at::kBFloat16);
        options.rules.push_back({.units = root_unit(), .keep_gathered = true});
        options.memory.store = store;
        Sharded sharded = fully_shard(model, world, options);
        torch::NoGradGuard no_grad;
        EXPECT_EQ(model->forward(1.0).item<float>(), 6.0F);
        if (through_scope) {
          const auto scope = sharded.full_parameters(/*writeback=*/true);
          model->weight.fill_(2.0);
        } else {
          for (const at::Tensor& shard : sharded.parameters()) {
            shard.data().fill_(2.0);  // which version counters do not see
          }
        }
        EXPECT_EQ(model->forward(1.0).item<float>(), 12.0F);
      });
    }
  }
}

struct WithBase : nn::Module {
  WithBase()
      : base(register_parameter("base", torch::arange(40, at::kChar).view({10, 4}).clone(),
                                /*requires_grad=*/false)),
        scale(register_parameter("scale", torch::ones({10}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return (base.to(scale.scalar_type()).matmul(x.to(scale.scalar_type())) * scale).sum();
  }
  at::Tensor base, scale;
};

TEST(FaultPrecision, Fault064_IntegersAreMovedButNeitherCastNorReduced) {
  for (const Store store : {Store::kSlots, Store::kAliased}) {
    run_threads(4, [&](World world) {
      auto model = std::make_shared<WithBase>();
      Options options = low_options(at::kBFloat16);
      options.memory.store = store;
      Sharded sharded = fully_shard(model, world, options);
      optim::AdamW optimizer(sharded);
      for (int step = 0; step < 3; ++step) {
        sharded.reset_counters();
        model->forward(torch::ones({4})).backward();
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_EQ(sharded.report().counters.reduce_bytes, 10 * 4);
      }
      EXPECT_EQ(model->base.scalar_type(), at::kChar);
      EXPECT_TRUE(torch::equal(model->base, torch::arange(40, at::kChar).view({10, 4})));
      EXPECT_EQ(model->scale.scalar_type(), at::kBFloat16);
    });
  }
}

/// A constant kernel, and a norm with running statistics.
struct WithBuffers : nn::Module {
  WithBuffers()
      : kernel(register_buffer("kernel", torch::full({4, 4}, 1.0F / 3))),
        first(register_module("first", nn::Linear(4, 4))),
        norm(register_module("norm", nn::BatchNorm1d(4))),
        last(register_module("last", nn::Linear(4, 1))) {}
  at::Tensor forward(const at::Tensor& x) {
    normed = norm(torch::matmul(first(x), kernel));
    return last(torch::matmul(normed, kernel)).sum();
  }
  at::Tensor kernel;
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear last;
  at::Tensor normed;
};

TEST(FaultPrecision, Fault068_Fault069_BatchNormsStayWholeAndConstantsFollow) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<WithBuffers>();
    Options options = low_options(at::kBFloat16);
    options.precision.buffers = at::kBFloat16;
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_EQ(model->kernel.scalar_type(), at::kBFloat16);
    // The reference's statistics, in float32, from the same bfloat16 activations.
    nn::BatchNorm1d reference(4);
    for (int step = 0; step < 100; ++step) {
      const at::Tensor x = torch::randn({8, 4});
      model->forward(x).backward();
      EXPECT_EQ(model->normed.scalar_type(), at::kBFloat16);
      torch::NoGradGuard no_grad;
      reference(torch::matmul(model->first(x), model->kernel).to(at::kFloat));
    }
    EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(model->norm->running_mean.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(model->norm->running_mean, reference->running_mean));
    EXPECT_TRUE(torch::equal(model->norm->running_var, reference->running_var));
    for (const NamedBuffer& buffer : sharded.named_buffers()) {
      if (buffer.name == "kernel") {  // saved as it came, though held as bfloat16
        EXPECT_EQ(buffer.buffer[0][0].item<float>(), 1.0F / 3);
        buffer.buffer.fill_(0.5);  // as loading does
      }
    }
    torch::NoGradGuard no_grad;
    model->forward(torch::randn({8, 4}));
    EXPECT_EQ(model->kernel[0][0].item<float>(), 0.5F);
  });
}

/// m11: ten steps of AdamW with gradient 1 move 1.0 to 0.98990, unless it is rounded back.
double after_ten_steps(World world, at::ScalarType built_in, bool low_shards) {
  auto model = std::make_shared<Weight>(1, built_in);
  Options options = low_options(at::kBFloat16);
  options.precision.low_precision_shards = low_shards;
  Sharded sharded = fully_shard(model, world, options);
  torch::optim::AdamW optimizer(sharded.parameters(),
                                torch::optim::AdamWOptions(1e-3).weight_decay(1e-2));
  for (int step = 0; step < 10; ++step) {
    sharded.zero_grad();
    model->forward(1.0).backward();
    optimizer.step();
  }
  const auto scope = sharded.full_parameters();
  return model->weight.item<double>();
}

TEST(FaultPrecision, Fault070_MastersInFloat32Move) {
  run_threads(2, [](World world) {
    EXPECT_NEAR(after_ten_steps(world, at::kFloat, false), 0.98990, 1e-5);
    // Also where the module was built in bfloat16, unless one insists.
    EXPECT_NEAR(after_ten_steps(world, at::kBFloat16, false), 0.98990, 1e-5);
    EXPECT_EQ(after_ten_steps(world, at::kBFloat16, true), 1.0);
  });
}

TEST(FaultPrecision, Fault073_Float16WithoutAScalerIsRefused) {
  run_threads(2, [](World world) {
    auto model = std::make_shared<Weight>(4);
    Options options = low_options(at::kHalf);
    options.precision.allow_unscaled = false;
    Sharded sharded = fully_shard(model, world, options);
    {
      torch::NoGradGuard no_grad;
      EXPECT_EQ(model->forward(1.0).item<float>(), 4.0F);
    }
    EXPECT_NE(error_of([&] { model->forward(1.0); }).find("fsdp::LossScaler"), std::string::npos);
  });
}

TEST(FaultPrecision, WhatMakesNoSenseIsRefused) {
  run_threads(1, [](World world) {
    auto model = std::make_shared<Weight>(4);
    Options options = low_options(at::kLong);
    EXPECT_NE(error_of([&] { fully_shard(model, world, options); }).find("precision.param is Long"),
              std::string::npos);
    options = low_options(at::kBFloat16);
    options.precision.full_precision = units_listed({"nothing"});
    EXPECT_NE(error_of([&] { fully_shard(model, world, options); }).find("\"nothing\""),
              std::string::npos);
  });
}

}  // namespace
