// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems around modules and what becomes of them: derived weights, hooks,
/// layouts, types, identity, first weights, several models; by number in docs/reference/faults.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/counting_allocator.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

double difference(const at::Tensor& left, const at::Tensor& right) {
  return (left.detach() - right.detach()).abs().max().item<double>();
}

/// Makes a module of type M with the same values on all ranks.
template <class M, class... Arguments>
std::shared_ptr<M> seeded(std::uint64_t seed, Arguments... arguments) {
  static std::mutex building;
  std::lock_guard lock(building);
  torch::manual_seed(seed);
  auto made = std::make_shared<M>(arguments...);
  return made;
}

at::Tensor rows(std::int64_t width, int rank, int size) {
  return torch::arange(12 * width, torch::kDouble)
      .mul(0.31)
      .sin()
      .view({12, width})
      .chunk(size)[rank];
}

struct WeightNorm : nn::Module {
  WeightNorm()
      : v(register_parameter("v", torch::randn({3, 4}, torch::kDouble))),
        g(register_parameter("g", torch::rand({3, 1}, torch::kDouble))) {}
  at::Tensor weight() const { return g * v / v.norm(2, {1}, true); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight()); }
  at::Tensor v, g;
};

TEST(ModuleLife, Fault052_WeightNormTrainsAsInOneProcess) {
  const auto reference = seeded<WeightNorm>(1);
  torch::optim::SGD plain(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    plain.zero_grad();
    reference->forward(rows(4, 0, 1)).square().mean().backward();
    plain.step();
  }
  run_threads(2, [&](World world) {
    const auto model = seeded<WeightNorm>(1);
    Sharded sharded = fully_shard(model, world, test_options({}));
    torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      model->forward(rows(4, world.rank(), 2)).square().mean().backward();
      optimizer.step();
    }
    const auto scope = sharded.full_parameters();
    EXPECT_LE(difference(model->v, reference->v), 1e-12);
    EXPECT_LE(difference(model->g, reference->g), 1e-12);
  });
}

TEST(ModuleLife, Fault052_AWeightDerivedBeforeAStepIsRefusedAfterIt) {
  run_threads(2, [](World world) {
    const auto model = seeded<WeightNorm>(1);
    const at::Tensor cached = model->weight();  // before sharding
    Sharded sharded = fully_shard(model, world, test_options({}));
    torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(0.1));
    const auto backward = [&] {
      torch::linear(rows(4, world.rank(), 2), cached).square().mean().backward({}, true);
    };
    backward();
    optimizer.step();
    EXPECT_NE(error_of(backward), "no error");
  });
}

struct OneLinear : nn::Module {
  OneLinear(std::int64_t in, std::int64_t out) : a(register_module("a", nn::Linear(in, out))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return a(x); }
  nn::Linear a;
};

TEST(ModuleLife, Fault053_HooksSeeTheWholeLocalGradientBeforeItIsReduced) {
  const auto reference = seeded<OneLinear>(2, 7, 5);
  reference->forward(rows(7, 0, 1)).square().mean().backward();
  run_threads(3, [&](World world) {
    const auto model = seeded<OneLinear>(2, 7, 5);
    Sharded sharded = fully_shard(model, world, test_options({}));
    std::vector<std::int64_t> seen;
    model->a->weight.register_hook([&](at::Tensor grad) {
      seen = grad.sizes().vec();
      return grad * 2;
    });
    model->forward(rows(7, world.rank(), 3)).square().mean().backward();
    EXPECT_EQ(seen, (std::vector<std::int64_t>{5, 7}));
    const Tensors gradients = whole_gradients(sharded);
    EXPECT_LE(difference(gradients[0], 2 * reference->a->weight.grad()), 1e-12);
    EXPECT_LE(difference(gradients[1], reference->a->bias.grad()), 1e-12);
  });
}

struct Stack : nn::Module {
  explicit Stack(int depth) {
    for (int i = 0; i < depth; ++i) {
      layers.push_back(register_module("l" + std::to_string(i), nn::Linear(4, 4)));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (nn::Linear& layer : layers) {
      x = torch::tanh(layer(x));
    }
    return x;
  }
  std::vector<nn::Linear> layers;
};

TEST(ModuleLife, Fault058_ABufferIsLentAgainOnlyWhenNothingNeedsIt) {
  const auto reference = seeded<Stack>(3, 3);
  reference->forward(rows(4, 0, 1)).square().mean().backward();
  run_threads(2, [&](World world) {
    const auto model = seeded<Stack>(3, 3);
    Options options = test_options(units_of<nn::Linear>());  // freed memory is filled with NaN
    options.memory.store = Store::kSlots;
    options.rules.push_back({.units = units_listed({"l0", "l2"}), .keep_gathered = true});
    Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      model->forward(rows(4, world.rank(), 2)).square().mean().backward();
      const Tensors gradients = whole_gradients(sharded);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_LE(difference(gradients[i], reference->parameters()[i].grad()), 1e-12);
      }
    }
  });
}

struct Strided : nn::Module {
  Strided()
      : conv(register_parameter(
            "conv", torch::randn({8, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast))),
        transposed(register_parameter("transposed", torch::randn({6, 4}).t())) {}
  at::Tensor conv, transposed;
};

TEST(ModuleLife, Fault063_StridesAndValuesSurvive) {
  const auto reference = seeded<Strided>(4);
  run_threads(3, [&](World world) {
    const auto model = seeded<Strided>(4);
    // A transposed parameter is a view, whose memory would stay: refused, and a clone is not.
    EXPECT_NE(error_of([&] { fully_shard(model, world, test_options({})); }).find("clone()"),
              std::string::npos);
    model->transposed.set_data(model->transposed.detach().clone());
    Sharded sharded = fully_shard(model, world, test_options({}));
    EXPECT_EQ(model->conv.strides(), reference->conv.strides());
    EXPECT_TRUE(model->conv.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_EQ(model->transposed.strides(), reference->transposed.strides());
    EXPECT_TRUE(torch::equal(model->conv, reference->conv));
    EXPECT_TRUE(torch::equal(model->transposed, reference->transposed));
  });
}

struct Complex : nn::Module {
  explicit Complex(bool as_real) {
    const at::Tensor values = torch::ones({3}, torch::kComplexFloat);
    weight = register_parameter("weight", as_real ? torch::view_as_real(values).clone() : values);
  }
  at::Tensor weight;
};

TEST(ModuleLife, Fault065_ComplexParametersTrainAsPairsAndAreMovedWhenFrozen) {
  run_threads(2, [](World world) {
    const auto refused = seeded<Complex>(5, false);
    EXPECT_NE(error_of([&] { fully_shard(refused, world, test_options({})); }).find("view_as_real"),
              std::string::npos);
    refused->weight.requires_grad_(false);
    Sharded frozen = fully_shard(refused, world, test_options({}));
    EXPECT_TRUE(torch::equal(refused->weight, torch::ones({3}, torch::kComplexFloat)));

    const auto pairs = seeded<Complex>(5, true);
    Sharded sharded = fully_shard(pairs, world, test_options({}));
    (pairs->weight * torch::tensor({3.0F, 4.0F})).sum().backward();  // 3+4i each
    EXPECT_NEAR(grad_norm(sharded), std::sqrt(75.0), 1e-6);
  });
}

struct Three : nn::Module {
  Three()
      : f(register_parameter("f", torch::randn({5}))),
        b(register_parameter("b", torch::randn({7}, torch::kBFloat16))),
        d(register_parameter("d", torch::randn({2}, torch::kDouble))) {}
  at::Tensor loss() { return f.square().sum() + b.square().sum() + d.square().sum(); }
  at::Tensor f, b, d;
};

TEST(ModuleLife, Fault066_EachTypeHasABufferOfItsOwn) {
  const auto reference = seeded<Three>(6);
  reference->loss().backward();
  run_threads(3, [&](World world) {
    const auto model = seeded<Three>(6);
    Options options = test_options({});
    options.memory.extra_slots = 2;
    Sharded sharded = fully_shard(model, world, options);
    model->loss().backward();
    EXPECT_EQ(model->f.scalar_type(), torch::kFloat);
    EXPECT_EQ(model->b.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model->d.scalar_type(), torch::kDouble);
    const Tensors gradients = whole_gradients(sharded);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(torch::equal(gradients[i],
                               reference->parameters()[i].grad().to(gradients[i].scalar_type())));
    }
  });
}

TEST(ModuleLife, Fault067_ATensorHeldBeforeIsTheSameAfterwards) {
  run_threads(2, [](World world) {
    const auto model = seeded<Stack>(7, 2);
    const at::Tensor held = model->layers[0]->weight;
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(held.is_same(model->layers[0]->weight));
      EXPECT_TRUE(sharded.is_sharded(held));
      EXPECT_TRUE(sharded.is_sharded(held.detach()));
      const at::Tensor y = model->forward(rows(4, world.rank(), 2));
      EXPECT_TRUE(held.is_same(model->layers[0]->weight));
      EXPECT_FALSE(sharded.is_sharded(y));
      y.sum().backward();
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
    }
    EXPECT_FALSE(sharded.is_sharded(held.clone()));
  });
}

struct WithTable : nn::Module {
  WithTable() : linear(register_module("linear", nn::Linear(3, 3))) {
    table = register_buffer("table", torch::zeros({4}));
  }
  nn::Linear linear;
  at::Tensor table;
};

TEST(ModuleLife, Fault075_Fault078_AllRanksOfAMeshStartFromRank0) {
  std::vector<Tensors> whole(4);
  run_threads(4, [&](World world) {
    const auto model = seeded<WithTable>(10 + static_cast<std::uint64_t>(world.rank()));
    if (world.rank() == 0) {
      model->table.fill_(3.5);
    }
    Options options = test_options({});
    options.strategy = Strategy::kHybrid;
    options.mesh = DeviceMesh(world, 2, 2);
    Sharded sharded = fully_shard(model, world, options);
    EXPECT_TRUE(torch::equal(model->table, torch::full({4}, 3.5)));
    const auto scope = sharded.full_parameters();
    whole[static_cast<std::size_t>(world.rank())] = {model->linear->weight.clone(),
                                                     model->linear->bias.clone()};
  });
  const auto first = seeded<WithTable>(10);
  for (const Tensors& of_rank : whole) {
    EXPECT_TRUE(torch::equal(of_rank[0], first->linear->weight));
    EXPECT_TRUE(torch::equal(of_rank[1], first->linear->bias));
  }
  run_threads(4, [&](World world) {
    const auto model = seeded<WithTable>(10 + static_cast<std::uint64_t>(world.rank()));
    Options options = test_options({});
    options.initial_weights = InitialWeights::kCheckEqual;
    EXPECT_NE(error_of([&] { fully_shard(model, world, options); }).find("\"linear.weight\""),
              std::string::npos);
  });
}

TEST(ModuleLife, Fault088_AStepNeedsNoTemporariesOfSize) {
  install_counting_allocator();
  run_threads(1, [](World world) {
    nn::Sequential model;
    for (int i = 0; i < 20; ++i) {
      model->push_back(nn::Linear(nn::LinearOptions(512, 512).bias(false)));  // 1 MB
    }
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    EXPECT_EQ(sharded.report().promise[memory::Kind::kMoments], 2 * 20 << 20);
    optim::AdamW optimizer(sharded);
    model->forward(torch::ones({1, 512})).sum().backward();
    reset_allocator_counts();
    const std::int64_t before = allocator_counts().live_bytes;
    optimizer.step();
    EXPECT_LE(allocator_counts().peak_bytes - before, 2 << 20);
  });
}

/// What a generator and a discriminator come to, each sharded by itself.
TEST(SeveralModels, AGeneratorTrainsThroughADiscriminator) {
  const auto train = [](Stack& generator, Stack& judge, const std::function<at::Tensor()>& data,
                        const std::function<void()>& step_judge,
                        const std::function<void()>& step_generator) {
    for (int step = 0; step < 3; ++step) {
      const at::Tensor made = generator.forward(data());
      (judge.forward(made.detach()).square().mean() - judge.forward(data()).mean()).backward();
      step_judge();
      judge.forward(generator.forward(data())).mean().backward();
      step_generator();
    }
  };
  const auto g = seeded<Stack>(20, 2);
  const auto d = seeded<Stack>(21, 3);
  torch::optim::SGD of_g(g->parameters(), 0.1), of_d(d->parameters(), 0.1);
  train(
      *g, *d, [] { return rows(4, 0, 1); },
      [&] {
        of_d.step();
        of_d.zero_grad();
        of_g.zero_grad();
      },
      [&] {
        of_g.step();
        of_d.zero_grad();
        of_g.zero_grad();
      });
  run_threads(2, [&](World world) {
    const auto generator = seeded<Stack>(20, 2);
    const auto judge = seeded<Stack>(21, 3);
    Sharded sharded_g = fully_shard(generator, world, test_options(units_of<nn::Linear>()));
    Sharded sharded_d = fully_shard(judge, world, test_options(units_of<nn::Linear>()));
    torch::optim::SGD sgd_g(sharded_g.parameters(), 0.1), sgd_d(sharded_d.parameters(), 0.1);
    const auto forget = [&] {
      sharded_g.zero_grad();
      sharded_d.zero_grad();
    };
    train(
        *generator, *judge, [&] { return rows(4, world.rank(), 2); },
        [&] {
          sgd_d.step();
          forget();
        },
        [&] {
          sgd_g.step();
          forget();
        });
    const auto scope_g = sharded_g.full_parameters();
    const auto scope_d = sharded_d.full_parameters();
    for (std::size_t i = 0; i < g->parameters().size(); ++i) {
      EXPECT_LE(difference(generator->parameters()[i], g->parameters()[i]), 1e-12);
    }
    for (std::size_t i = 0; i < d->parameters().size(); ++i) {
      EXPECT_LE(difference(judge->parameters()[i], d->parameters()[i]), 1e-12);
    }
  });
}

TEST(SeveralModels, AFrozenTeacherIsDistilledIntoAStudent) {
  const auto teacher_alone = seeded<Stack>(30, 2);
  const auto student_alone = seeded<Stack>(31, 2);
  const at::Tensor x = rows(4, 0, 1);
  (student_alone->forward(x) - teacher_alone->forward(x).detach()).square().mean().backward();
  run_threads(2, [&](World world) {
    const auto teacher = seeded<Stack>(30, 2);
    const auto student = seeded<Stack>(31, 2);
    for (const at::Tensor& parameter : teacher->parameters()) {
      parameter.requires_grad_(false);
    }
    Sharded sharded_t = fully_shard(teacher, world, test_options(units_of<nn::Linear>()));
    Sharded sharded_s = fully_shard(student, world, test_options(units_of<nn::Linear>()));
    const at::Tensor mine = rows(4, world.rank(), 2);
    const auto taught = [&] {
      torch::NoGradGuard no_grad;
      return teacher->forward(mine);
    };
    for (int step = 0; step < 2; ++step) {  // the teacher's first run ends where nobody can know
      sharded_s.zero_grad();
      (student->forward(mine) - taught()).square().mean().backward();
    }
    const Tensors gradients = whole_gradients(sharded_s);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_LE(difference(gradients[i], student_alone->parameters()[i].grad()), 1e-12);
    }
    EXPECT_EQ(sharded_t.report().counters.reduce_scatters, 0);
    EXPECT_EQ(sharded_t.report().unsharded_numel, 0);
  });
}

TEST(ModuleLife, CloneGivesWholeValuesAndConversionsAreRefused) {
  run_threads(2, [](World world) {
    const auto model = seeded<Stack>(40, 2);
    const at::Tensor before = model->layers[0]->weight.detach().clone();
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    EXPECT_TRUE(torch::equal(model->layers[0]->weight.clone(), before));
    model->to(torch::kFloat);
    EXPECT_NE(error_of([&] {
                model->forward(rows(4, 0, 1).to(torch::kFloat)).sum().backward();
              }).find("no longer lives in its unit's shards"),
              std::string::npos);
  });
}

}  // namespace
