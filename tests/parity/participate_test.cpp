// SPDX-License-Identifier: Apache-2.0
/// Ranks that leave a part of the model out: an error that names unit and rank, or, with
/// participate(), the numbers of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace nn = torch::nn;

/// Weights that depend on nothing but their place.
void fill(nn::Module& module) {
  torch::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : module.parameters()) {
    const at::Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((steps * 0.7 + ++phase).sin().mul(0.6).view(parameter.sizes()));
  }
}

/// Two layers, of which the second may be a unit inside of the first's.
struct EncoderImpl : nn::Module {
  EncoderImpl()
      : before(register_module("before", nn::Linear(4, 4))),
        inner(register_module("inner", nn::Linear(4, 4))),
        after(register_module("after", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return after(torch::tanh(inner(torch::tanh(before(x)))));
  }
  nn::Linear before, inner, after;
};
TORCH_MODULE(Encoder);

struct Net : nn::Module {
  Net()
      : stem(register_module("stem", nn::Linear(4, 4))),
        encoder(register_module("encoder", Encoder())),
        decoder(register_module("decoder", nn::Linear(4, 4))),
        head(register_module("head", nn::Linear(4, 1))) {
    to(torch::kDouble);
    fill(*this);
  }
  /// Without the encoder what `instead` returns joins the loss.
  at::Tensor loss(const at::Tensor& x, bool encodes, bool encodes_input,
                  const std::function<at::Tensor()>& instead = nullptr) {
    at::Tensor extra = torch::zeros({}, torch::kDouble);
    at::Tensor y = torch::tanh(stem(x));
    if (encodes) {
      y = y + encoder(encodes_input ? x : y);
    } else if (instead != nullptr) {
      extra = instead();
    }
    return head(torch::tanh(decoder(y))).square().mean() + extra;
  }
  nn::Linear stem;
  Encoder encoder;
  nn::Linear decoder, head;
};

at::Tensor batch(int rank, int step) {
  return torch::arange(12, torch::kDouble).mul(0.37).add(rank + 0.7 * step).sin().view({3, 4});
}

/// Which units, and from which step on ranks differ: nested units need one step in which all ranks
/// run them, to know in which order they run.
struct Division {
  const char* name;
  const char* units;
  int first_difference;
};
constexpr Division kDivisions[] = {
    {"one unit", "stem|encoder|decoder|head", 0},
    {"one unit a layer", "stem|encoder\\..*|decoder|head", 0},
    {"a unit inside another", "stem|encoder|encoder\\.inner|decoder|head", 1},
    {"the root", "encoder\\.inner|decoder", 1},
};

struct Case {
  Division division;
  int prefetch;
  Store store;
  bool encodes_input;
};

/// Rank and step decide who encodes: all, some, and none.
bool encodes(const Case& of, int rank, int step) {
  return step < of.division.first_difference || (rank + step) % 3 == 0;
}

constexpr int kSteps = 6;
constexpr int kRanks = 2;

template <class StepLoss>
std::vector<at::Tensor> train(const std::vector<at::Tensor>& leaves, const StepLoss& step_loss) {
  torch::optim::AdamW optimizer(leaves,
                                torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/true);
    step_loss(step).backward();
    optimizer.step();
  }
  return leaves;
}

/// One process: the mean of the ranks' losses. A rank that leaves the encoder out adds nothing to
/// its gradient, and where all do it has none.
std::vector<at::Tensor> reference(const Case& of) {
  Net net;
  return train(net.parameters(), [&](int step) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < kRanks; ++rank) {
      sum = sum + net.loss(batch(rank, step), encodes(of, rank, step), of.encodes_input);
    }
    return sum / kRanks;
  });
}

void expect_equals_one_process(World world, const Case& of) {
  const auto net = std::make_shared<Net>();
  Options options = test_options(units_matching(of.division.units), 0, of.prefetch);
  options.rules.push_back({.units = units_matching("|encoder|encoder\\..*"), .optional = true});
  options.memory.store = of.store;
  const Sharded sharded = fully_shard(net, world, options);
  train(sharded.parameters(), [&](int step) {
    return net->loss(batch(world.rank(), step), encodes(of, world.rank(), step), of.encodes_input,
                     [&] { return sharded.participate(*net->encoder); });
  });
  EXPECT_EQ(sharded.report().unsharded_numel, 0);
  const std::vector<at::Tensor> expected = reference(of);
  const auto full = sharded.full_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE((net->parameters()[i] - expected[i]).abs().max().item<double>(), 1e-12)
        << of.division.name << ", parameter " << i;
  }
}

TEST(Participate, Fault011_TrainingEqualsOneProcessWhoeverTakesPart) {
  for (const Division& division : kDivisions) {
    for (const int prefetch : {0, 1, 3}) {
      for (const Store store : {Store::kSlots, Store::kAliased}) {
        for (const bool encodes_input : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << division.name << ", prefetch " << prefetch << ", store "
                       << static_cast<int>(store) << ", encodes input " << encodes_input);
          run_threads(kRanks, [&](World world) {
            expect_equals_one_process(world, {division, prefetch, store, encodes_input});
          });
        }
      }
    }
  }
}

TEST(Participate, Fault001_ARankThatTakesPartHalvesTheGradient) {
  on_all_transports(2, 5, [](World world) {
    Net reference;
    reference.loss(batch(0, 0), true, true).backward();
    const auto net = std::make_shared<Net>();
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    Sharded sharded = fully_shard(net, world, options);
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      net->loss(batch(0, 0), world.rank() == 0, true,
                [&] { return sharded.participate("encoder"); })
          .backward();
      const auto gradients = whole_gradients(sharded);
      const auto named = sharded.named_parameters();
      for (std::size_t i = 0; i < named.size(); ++i) {
        if (named[i].name.starts_with("encoder.")) {
          const at::Tensor half = reference.parameters()[i].grad() / 2;
          EXPECT_TRUE(torch::equal(gradients[i], half)) << named[i].name;
        }
      }
    }
  });
}

TEST(Participate, Fault001_ARankThatDoesNotIsNamedWithTheUnit) {
  on_all_transports(2, 5, [](World world) {
    const auto net = std::make_shared<Net>();
    const Sharded sharded =
        fully_shard(net, world, test_options(units_matching("stem|encoder|decoder|head")));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(error_of([&] { net->loss(batch(0, 0), world.rank() == 0, false).backward(); }),
                AllOf(HasSubstr("\"encoder\""), HasSubstr("rank 1"), HasSubstr("world.recover()")));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 7);
  });
}

TEST(Participate, EvaluationTakesPartToo) {
  run_threads(2, [](World world) {
    const auto net = std::make_shared<Net>();
    Options options = test_options(units_matching("stem|encoder\\..*|decoder|head"));
    options.rules.push_back({.units = units_matching("encoder\\..*"), .optional = true});
    Sharded sharded = fully_shard(net, world, options);
    torch::NoGradGuard no_grad;
    for (int pass = 0; pass < 4; ++pass) {
      const bool encodes = world.rank() == pass % 2;
      const double loss = net->loss(batch(0, pass), encodes, false,
                                    [&] {
                                      const at::Tensor zero = sharded.participate(*net->encoder);
                                      EXPECT_FALSE(zero.requires_grad());
                                      return zero;
                                    })
                              .item<double>();
      EXPECT_EQ(loss, Net().loss(batch(0, pass), encodes, false).item<double>());
      sharded.reshard();
    }
  });
}

TEST(Participate, WhatTheWeightsAreDoesNotReachTheLoss) {
  run_threads(1, [](World world) {
    const auto net = std::make_shared<Net>();
    {
      torch::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net->encoder->parameters()) {
        parameter.fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    const Sharded sharded = fully_shard(net, world, options);
    const at::Tensor loss =
        net->loss(batch(0, 0), false, false, [&] { return sharded.participate(*net->encoder); });
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
    loss.backward();
    for (const NamedShard& parameter : sharded.named_parameters()) {
      const bool is_used = !parameter.name.starts_with("encoder.");
      ASSERT_EQ(parameter.shard.grad().defined(), is_used) << parameter.name;
      EXPECT_TRUE(!is_used || parameter.shard.grad().isfinite().all().item<bool>())
          << parameter.name;
    }
  });
}

/// A weight of 1 and AdamW with decay 0.1 and rate 0.1: a gradient of zero would make it 0.99.
TEST(Participate, Fault144_ABranchThatNobodyRunsIsNotTrained) {
  struct Branch : nn::Module {
    Branch() : used(register_module("used", nn::Linear(2, 2))) {
      branch = register_module("branch", nn::Linear(nn::LinearOptions(2, 2).bias(false)));
      const torch::NoGradGuard no_grad;
      branch->weight.fill_(1);
    }
    nn::Linear used, branch{nullptr};
  };
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    for (const GradientSync first : {GradientSync::kEveryBackward, GradientSync::kDeferAll}) {
      for (const bool is_ours : {false, true}) {
        run_threads(2, [&](World world) {
          const auto model = std::make_shared<Branch>();
          Options options = test_options(units_of<nn::Linear>());
          options.strategy = strategy;
          options.rules.push_back({.units = units_listed({"branch"}), .optional = true});
          Sharded sharded = fully_shard(model, world, options);
          optim::AdamW ours(sharded, {.lr = 0.1, .weight_decay = 0.1});
          torch::optim::AdamW theirs(sharded.parameters(),
                                     torch::optim::AdamWOptions(0.1).weight_decay(0.1));
          const at::Tensor x = torch::ones({1, 2});
          const auto step = [&](int runner) {
            sharded.zero_grad();
            for (const GradientSync sync : {first, GradientSync::kEveryBackward}) {
              sharded.set_gradient_sync(sync);
              const at::Tensor y = model->used(x);
              const at::Tensor of_branch =
                  world.rank() == runner
                      ? model->branch(y).sum()
                      : sharded.participate(*model->branch) + sharded.participate(*model->branch);
              (y.sum() + of_branch).backward();
            }
            is_ours ? ours.step() : static_cast<void>(theirs.step());
          };
          const NamedShard branch = sharded.named_parameters()[2];
          ASSERT_EQ(branch.name, "branch.weight");
          for (int i = 0; i < 3; ++i) {
            step(/*runner=*/-1);
            EXPECT_FALSE(branch.shard.grad().defined());
          }
          EXPECT_TRUE(branch.shard.eq(1).all().item<bool>());
          EXPECT_EQ(ours.parameters()[2].steps, 0);
          EXPECT_EQ(theirs.state().count(branch.shard.unsafeGetTensorImpl()), 0u);
          step(/*runner=*/1);  // then all ranks have it
          EXPECT_TRUE(branch.shard.grad().defined());
          EXPECT_EQ(ours.parameters()[2].steps, is_ours ? 1 : 0);
        });
      }
    }
  }
}

/// Run and left out in one step: what it was run for counts.
TEST(Participate, Fault144_WhatIsAlsoUsedHasItsGradient) {
  run_threads(1, [](World world) {
    const auto net = std::make_shared<Net>();
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    Sharded sharded = fully_shard(net, world, options);
    for (const bool takes_part_first : {false, true}) {
      sharded.zero_grad();
      at::Tensor sum = torch::zeros({}, torch::kDouble);
      if (takes_part_first) {
        sum = sum + sharded.participate(*net->encoder);
      }
      sum = sum + net->loss(batch(0, 0), true, true);
      if (!takes_part_first) {
        sum = sum + sharded.participate(*net->encoder);
      }
      sum.backward();
      Net reference;
      reference.loss(batch(0, 0), true, true).backward();
      const auto gradients = whole_gradients(sharded);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_TRUE(torch::allclose(gradients[i], reference.parameters()[i].grad(), 0, 1e-14)) << i;
      }
    }
  });
}

TEST(Participate, CostsTheCollectivesOfTheUnitAndNoMore) {
  run_threads(2, [](World world) {
    const auto net = std::make_shared<Net>();
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    Sharded sharded = fully_shard(net, world, options);
    for (int step = 0; step < 3; ++step) {
      sharded.reset_counters();
      net->loss(batch(0, step), world.rank() == 0, false,
                [&] { return sharded.participate(*net->encoder); })
          .backward();
      // Four in forward; in backward not the head again, nor the decoder, once it is known to come
      // next, nor the stem, whose input needs no gradient.
      EXPECT_EQ(sharded.report().counters.gathers, 4 + (step == 0 ? 2 : 1));
      EXPECT_EQ(sharded.report().counters.reduce_scatters, 4);
    }
    EXPECT_EQ(sharded.report().peak.total(), sharded.report().live.total());
  });
}

TEST(Participate, MistakesAreNamed) {
  run_threads(1, [](World world) {
    const auto net = std::make_shared<Net>();
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    const Sharded sharded = fully_shard(net, world, options);
    EXPECT_THAT(error_of([&] { sharded.participate(*net->decoder); }),
                AllOf(HasSubstr("\"decoder\" is not optional"), HasSubstr("Options::rules")));
    EXPECT_THAT(error_of([&] { sharded.participate("encodre"); }),
                AllOf(HasSubstr("[not found]"), HasSubstr("the nearest are \"encoder\"")));
    EXPECT_THAT(error_of([&] { sharded.participate(*nn::Linear(2, 2)); }),
                HasSubstr("is not one of this Sharded"));
    EXPECT_THAT(error_of([&] { sharded.participate(*nn::ReLU()); }), HasSubstr("has no weights"));
    const auto other = std::make_shared<Net>();
    options.rules.push_back({.units = units_listed({"encoder.inner"}), .optional = true});
    EXPECT_THAT(error_of([&] { fully_shard(other, world, options); }),
                AllOf(HasSubstr("[not found]"), HasSubstr("\"encoder.inner\"")));
  });
}

TEST(Participate, OptionalOnOneRankOnlyIsRefused) {
  run_threads(2, [](World world) {
    Options options = test_options(units_matching("stem|encoder|decoder|head"));
    if (world.rank() == 1) {
      options.rules.push_back({.units = units_listed({"encoder"}), .optional = true});
    }
    EXPECT_THAT(error_of([&] { fully_shard(std::make_shared<Net>(), world, options); }),
                AllOf(HasSubstr("[mismatch]"), HasSubstr("optional")));
  });
}

}  // namespace
}  // namespace fsdp::test
