// SPDX-License-Identifier: Apache-2.0
/// Activation checkpointing: the same bits as without, the same gathers, less memory.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
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

/// Two linear layers with dropout between them.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width)
      : first(register_module("first", nn::Linear(width, width))),
        second(register_module("second", nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return x + second(torch::dropout(torch::tanh(first(x)), drop, is_training()));
  }
  nn::Linear first, second;
  double drop = 0.25;
  int runs = 0;
};
TORCH_MODULE(Block);

enum class Nesting { kNone, kOutside, kInside };

/// Blocks, each checkpointed as a whole or in its second half.
struct Model : nn::Module {
  explicit Model(int depth, std::int64_t width = 4) {
    for (int i = 0; i < depth; ++i) {
      blocks.push_back(register_module("b" + std::to_string(i), Block(width)));
    }
  }
  at::Tensor forward(at::Tensor x, Nesting nesting) {
    for (Block& block : blocks) {
      const auto run = [&block](const at::Tensor& h) { return block->forward(h); };
      switch (nesting) {
        case Nesting::kNone: x = run(x); break;
        case Nesting::kOutside: x = recompute(run, x); break;
        case Nesting::kInside:  // the checkpoint lies inside of the unit
          x = x + recompute(
                      [&block](const at::Tensor& h) {
                        return block->second(torch::dropout(torch::tanh(block->first(h)),
                                                            block->drop, block->is_training()));
                      },
                      x);
          break;
      }
    }
    return x;
  }
  std::vector<Block> blocks;
};

std::shared_ptr<Model> make_model(int depth, std::int64_t width = 4) {
  torch::manual_seed(3);
  auto model = std::make_shared<Model>(depth, width);
  model->to(torch::kDouble);
  return model;
}

Tensors gradients(nn::Module& module) {
  Tensors all;
  for (const at::Tensor& parameter : module.parameters()) {
    all.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return all;
}

void expect_same(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

at::Tensor input(std::int64_t width = 4) {
  return torch::arange(3 * width, torch::kDouble).mul(0.37).sin().view({3, width});
}

TEST(Recompute, SameBitsWithDropoutAndTheStreamOfRandomNumbersGoesOn) {
  auto model = make_model(3);
  std::map<Nesting, Tensors> results;
  for (const Nesting nesting : {Nesting::kNone, Nesting::kOutside, Nesting::kInside}) {
    torch::manual_seed(7);
    const at::Tensor x = input().requires_grad_();
    const at::Tensor y = model->forward(x, nesting);
    const at::Tensor drawn_between = torch::rand({4});
    y.square().sum().backward();
    results[nesting] = gradients(*model);
    for (const at::Tensor& more : {y, x.grad(), drawn_between, torch::rand({4})}) {
      results[nesting].push_back(more);
    }
  }
  expect_same(results[Nesting::kOutside], results[Nesting::kNone]);
  expect_same(results[Nesting::kInside], results[Nesting::kNone]);
}

TEST(Recompute, RunsTwiceInTrainingOnceInEvaluation) {
  auto model = make_model(1);
  model->forward(input(), Nesting::kOutside).sum().backward();
  EXPECT_EQ(model->blocks[0]->runs, 2);
  torch::NoGradGuard no_grad;
  model->forward(input(), Nesting::kOutside);
  EXPECT_EQ(model->blocks[0]->runs, 3);
}

/// What differs is only how `part` is called.
using Call = std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& part,
                                      const at::Tensor& x)>;
const Call kPlain = [](const auto& part, const at::Tensor& x) { return part(x); };
const Call kCheckpointed = [](const auto& part, const at::Tensor& x) { return recompute(part, x); };

TEST(Recompute, AutogradGradKeptGraphsAndDoubleBackward) {
  auto model = make_model(2);
  model->eval();
  const auto run = [&](const Call& call) {
    const at::Tensor x = input().requires_grad_();
    const at::Tensor w = model->blocks[0]->first->weight;
    const at::Tensor y =
        call([&](const at::Tensor& h) { return model->forward(h, Nesting::kNone); }, x);
    Tensors all = torch::autograd::grad({y.square().sum()}, {x, w}, {}, /*retain_graph=*/true,
                                        /*create_graph=*/true);
    (all[0].square().sum() + all[1].square().sum()).backward({}, /*retain_graph=*/true);
    y.sum().backward();  // once more through the same graph
    for (const at::Tensor& gradient : gradients(*model)) {
      all.push_back(gradient);
    }
    all.push_back(x.grad());
    return all;
  };
  expect_same(run(kCheckpointed), run(kPlain));
}

TEST(Recompute, SeveralResultsInputsWithoutGradAndOtherArguments) {
  auto model = make_model(1);
  model->eval();
  struct Result {
    at::Tensor sum;
    std::map<std::string, at::Tensor> more;
    std::optional<at::Tensor> nothing;
  };
  const auto part = [&](const at::Tensor& h, const at::Tensor& mask, double scale,
                        const Tensors& list) -> Result {
    const at::Tensor y = model->blocks[0]->forward(h) * mask * scale;
    return {y.exp().sum(), {{"tanh", y.tanh() * list[0]}}, {}};
  };
  const auto run = [&](bool checkpointed) {
    const at::Tensor x = input().requires_grad_();
    const at::Tensor mask = input().gt(0);
    const Tensors list = {input().add(2.0).requires_grad_()};
    const Result result =
        checkpointed ? recompute(part, x, mask, 0.5, list) : part(x, mask, 0.5, list);
    (result.sum + result.more.at("tanh").sum()).backward();
    Tensors all = gradients(*model);
    all.push_back(x.grad());
    all.push_back(list[0].grad());
    return all;
  };
  expect_same(run(true), run(false));
}

TEST(Recompute, CheckpointsInsideOfCheckpoints) {
  auto model = make_model(4);
  const auto run = [&](bool nested) {
    torch::manual_seed(5);
    const at::Tensor x = input().requires_grad_();
    const auto two = [&](std::size_t first) {
      return [&, first](at::Tensor h) {
        for (std::size_t i = first; i < first + 2; ++i) {
          const auto one = [&, i](const at::Tensor& g) { return model->blocks[i]->forward(g); };
          h = nested ? recompute(one, h) : one(h);
        }
        return h;
      };
    };
    at::Tensor y = nested ? recompute(two(0), x) : two(0)(x);
    y = nested ? recompute(two(2), y) : two(2)(y);
    y.square().sum().backward();
    Tensors all = gradients(*model);
    all.push_back(x.grad());
    return all;
  };
  expect_same(run(true), run(false));
}

TEST(Recompute, AFunctionThatDiffersTheSecondTimeIsRefused) {
  const at::Tensor x = input().requires_grad_();
  int runs = 0;
  const at::Tensor more =
      recompute([&](const at::Tensor& h) { return ++runs == 1 ? h.exp() : h.exp().tanh(); }, x);
  EXPECT_NE(error_of([&] { more.sum().backward(); }).find("second run saved 2 tensors"),
            std::string::npos);
  runs = 0;
  const at::Tensor other = recompute(
      [&](const at::Tensor& h) { return ++runs == 1 ? h.exp() : h.to(torch::kFloat).exp(); }, x);
  EXPECT_NE(error_of([&] { other.sum().backward(); }).find("is Float [3, 4] on cpu in the second"),
            std::string::npos);
}

TEST(Recompute, ActivationsOfOneBlockAtATimeAreHeld) {
  install_counting_allocator();
  constexpr std::int64_t kWidth = 64;
  constexpr int kDepth = 8;
  auto model = make_model(kDepth, kWidth);
  const at::Tensor x = torch::rand({256, kWidth}, torch::kDouble).requires_grad_();
  const auto peak = [&](Nesting nesting) {
    const std::int64_t before = allocator_counts().live_bytes;
    reset_allocator_counts();
    model->forward(x, nesting).sum().backward();
    const std::int64_t reached = allocator_counts().peak_bytes - before;
    gradients(*model);
    x.mutable_grad().reset();
    return reached;
  };
  const std::int64_t activation = 256 * kWidth * 8;
  const std::int64_t weights = kDepth * 2 * (kWidth * kWidth + kWidth) * 8;
  // Each block saves tanh, a mask and a product beside its input; checkpointed, its input alone,
  // and what one block saves and computes on top of that.
  EXPECT_GE(peak(Nesting::kNone), kDepth * 3 * activation);
  EXPECT_LE(peak(Nesting::kOutside), (kDepth + 1) * activation + 7 * activation + weights);
}

Options block_options(int prefetch = 1) { return test_options(units_of<Block>(), 0, prefetch); }

TEST(Recompute, Fault054_NoMoreGathersThanWithoutInBothNestings) {
  for (const int prefetch : {0, 1}) {
    for (const Nesting nesting : {Nesting::kNone, Nesting::kOutside, Nesting::kInside}) {
      Tensors expected;
      {
        auto model = make_model(4);
        model->eval();
        model->forward(input(), Nesting::kNone).square().sum().backward();
        expected = gradients(*model);
      }
      std::array<std::shared_ptr<Model>, 2> models = {make_model(4), make_model(4)};
      run_threads(2, [&](World world) {
        const auto& model = models[static_cast<std::size_t>(world.rank())];
        model->eval();  // the default generator is shared by threads
        Sharded sharded = fully_shard(model, world, block_options(prefetch));
        for (int step = 0; step < 3; ++step) {
          sharded.reset_counters();
          sharded.zero_grad();
          model->forward(input(), nesting).square().sum().backward();
          // Each block twice, but for the last, which is still there at the turn, and those before
          // it that are known to come next.
          const int stay = 1 + (step == 0 ? 0 : prefetch);
          EXPECT_EQ(sharded.report().counters.gathers, 2 * 4 - stay) << "step " << step;
          EXPECT_EQ(sharded.report().unsharded_numel, 0);
          const Tensors actual = whole_gradients(sharded);
          for (std::size_t i = 0; i < actual.size(); ++i) {
            EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
          }
        }
      });
    }
  }
}

TEST(Recompute, Fault055_TheSecondRunCastsAsTheFirst) {
  std::array<std::shared_ptr<Model>, 2> models = {make_model(3), make_model(3)};
  run_threads(2, [&](World world) {
    const auto& model = models[static_cast<std::size_t>(world.rank())];
    model->eval();
    model->to(torch::kFloat);
    Options options = block_options();
    options.precision.param = at::kBFloat16;
    options.precision.output = at::kFloat;
    Sharded sharded = fully_shard(model, world, options);
    std::vector<Tensors> results;
    for (const Nesting nesting : {Nesting::kNone, Nesting::kOutside, Nesting::kInside}) {
      sharded.zero_grad();
      const at::Tensor x = input().to(torch::kFloat).requires_grad_();
      model->forward(x, nesting).square().sum().backward();
      results.push_back(whole_gradients(sharded));
      results.back().push_back(x.grad());
    }
    for (std::size_t way = 1; way < results.size(); ++way) {
      expect_same(results[way], results[0]);
    }
  });
}

TEST(Recompute, Fault056_NothingGatheredAheadIsLeftOver) {
  std::array<std::shared_ptr<Model>, 2> models = {make_model(6), make_model(6)};
  run_threads(2, [&](World world) {
    const auto& model = models[static_cast<std::size_t>(world.rank())];
    model->eval();
    Options options = block_options(/*prefetch=*/2);
    int live = 0, most = 0;
    options.debug.observer = [&](const trace::Event& event) {
      if (event.kind == trace::EventKind::kGatherStart) {
        most = std::max(most, ++live);
      } else if (event.kind == trace::EventKind::kFree) {
        --live;
      }
    };
    Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 4; ++step) {
      const bool is_partial = step == 3;  // backward covers the last three blocks only
      sharded.zero_grad();
      at::Tensor x = input();
      for (std::size_t i = 0; i < 6; ++i) {
        torch::AutoGradMode grad_mode(!is_partial || i >= 3);
        const auto run = [model, i](const at::Tensor& h) { return model->blocks[i]->forward(h); };
        x = recompute(run, x);
      }
      x.square().sum().backward();
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
      EXPECT_EQ(live, 0);
    }
    EXPECT_LE(most, 3);
  });
}

}  // namespace
