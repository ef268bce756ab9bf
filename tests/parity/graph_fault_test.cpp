// SPDX-License-Identifier: Apache-2.0
/// Faults of other systems with graphs that are no plain chain, by their number in
/// docs/reference/faults.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <tuple>

#include "fsdp/fsdp.hpp"
#include "support/twins.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

at::Tensor batch(std::int64_t width, int step, int rank) {
  return torch::arange(3 * width, torch::kDouble)
      .mul(0.7)
      .add(step + 3 * rank)
      .sin()
      .view({3, width});
}

struct Shared : nn::Module {
  struct Block : nn::Module {
    explicit Block(at::Tensor shared_in)
        : shared(register_parameter("shared", std::move(shared_in))),
          own(register_module("own", nn::Linear(6, 6))) {}
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(own(x).matmul(shared)); }
    at::Tensor shared;
    nn::Linear own;
  };
  Shared() {
    const at::Tensor weight = torch::randn({6, 6}).requires_grad_();
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Block>(weight)));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) {
      x = block->forward(x);
    }
    return x;
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

TEST(Graph, Fault036_AWeightOfManyLayersGetsTheSumOfTheirGradients) {
  expect_twins<Shared>({.ranks = 4,
                        .options = test_options(units_matching("block\\d")),
                        .loss = [](Shared& model, int step, int rank) {
                          return model.forward(batch(6, step, rank)).square().mean();
                        }});
}

struct Two : nn::Module {
  Two()
      : first(register_module("first", nn::Linear(4, 4))),
        second(register_module("second", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  nn::Linear first, second;
};

Options two_units() { return test_options(units_of<nn::Linear>()); }

TEST(Graph, Fault043_ALossFromAnIntermediateGathersByUse) {
  expect_twins<Two>({.options = two_units(), .loss = [](Two& model, int step, int rank) {
                       const at::Tensor kept = model.first(batch(4, step, rank));
                       const at::Tensor unused = model.second(kept);
                       return kept.square().sum();
                     }});
}

struct Results {
  at::Tensor a;
  std::vector<std::map<std::string, at::Tensor>> more;
  std::optional<at::Tensor> maybe;
  std::tuple<at::Tensor, int> pair;
};

TEST(Graph, Fault044_ResultsMayBeOfAnyType) {
  expect_twins<Two>({.options = two_units(), .loss = [](Two& model, int step, int rank) {
                       const at::Tensor x = batch(4, step, rank);
                       const Results results{.a = model.first(x),
                                             .more = {{{"b", model.second(x)}}},
                                             .maybe = model.forward(x),
                                             .pair = {model.second(torch::sin(x)), 3}};
                       return results.a.sum() + results.more[0].at("b").square().sum() +
                              results.maybe->sum() + std::get<0>(results.pair).square().sum();
                     }});
}

/// Whole gradients after `run`, which calls backward as often as it likes.
template <class Run>
std::vector<at::Tensor> sharded_gradients(const Two& like, const World& world, Run run,
                                          std::int64_t& reductions) {
  auto model = std::make_shared<Two>();
  model->to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      model->parameters()[i].copy_(like.parameters()[i]);
    }
  }
  Sharded sharded = fully_shard(model, world, two_units());
  run(*model, &sharded, world.rank());
  reductions = sharded.report().counters.reduce_scatters;
  EXPECT_EQ(sharded.report().unsharded_numel, 0);
  return whole_gradients(sharded);
}

template <class Run>
void expect_equal_gradients(Run run, std::int64_t expected_reductions) {
  torch::manual_seed(2);
  auto reference = std::make_shared<Two>();
  reference->to(torch::kDouble);
  for (int rank = 0; rank < 2; ++rank) {
    run(*reference, nullptr, rank);
  }
  run_threads(2, [&](World world) {
    std::int64_t reductions = 0;
    const auto gradients = sharded_gradients(*reference, world, run, reductions);
    EXPECT_EQ(reductions, expected_reductions);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor expected = reference->parameters()[i].grad() / 2;
      EXPECT_TRUE(torch::allclose(gradients[i], expected, 0, 1e-12)) << i;
    }
  });
}

TEST(Graph, Fault045_SeveralForwardsThenBackwardsInAnyOrder) {
  for (const bool reverse : {false, true}) {
    for (const bool defers : {false, true}) {
      expect_equal_gradients(
          [&](Two& model, Sharded* sharded, int rank) {
            std::vector<at::Tensor> losses;
            for (int call = 0; call < 2; ++call) {
              losses.push_back(model.forward(batch(4, call, rank)).square().sum());
            }
            if (reverse) {
              std::swap(losses[0], losses[1]);
            }
            if (sharded != nullptr && defers) {
              sharded->set_gradient_sync(GradientSync::kDeferAll);
            }
            losses[0].backward();
            if (sharded != nullptr) {
              sharded->set_gradient_sync(GradientSync::kEveryBackward);
            }
            losses[1].backward();
          },
          defers ? 2 : 4);
    }
  }
}

TEST(Graph, Fault046_ASecondBackwardOfAKeptGraphIsAdded) {
  expect_equal_gradients(
      [](Two& model, Sharded*, int rank) {
        const at::Tensor y = model.forward(batch(4, 0, rank));
        y.square().sum().backward({}, /*keep_graph=*/true);
        y.sin().sum().backward();
      },
      4);
}

}  // namespace
