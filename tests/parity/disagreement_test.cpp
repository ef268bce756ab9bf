// SPDX-License-Identifier: Apache-2.0
/// Ranks that run different code: every rank gets a clear error within the time-out, over threads
/// and over real processes; none hangs, none is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/fsdp.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

constexpr int kRanks = 3;
constexpr double kTimeoutSeconds = 5;

struct Net : nn::Module {
  Net() {
    for (const char* name : {"a", "b", "c", "d"}) {
      layers.push_back(register_module(name, nn::Linear(3, 3)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (nn::Linear& layer : layers) {
      x = torch::tanh(layer(x));
    }
    return x;
  }
  at::Tensor loss() { return forward(torch::ones({2, 3})).sum(); }
  std::vector<nn::Linear> layers;
};

struct Party {
  World world;
  std::shared_ptr<Net> model;
  Sharded sharded;
  bool is(int rank) const { return world.rank() == rank; }
};

/// Two good steps, then `disagree`, then a good step, in which the latest every rank must throw.
void take_part(World world, const std::function<void(Party&)>& disagree) {
  const auto model = std::make_shared<Net>();
  Party party{world, model, fully_shard(model, world, test_options(units_of<nn::Linear>()))};
  for (int step = 0; step < 2; ++step) {
    model->loss().backward();
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] {
    disagree(party);
    model->loss().backward();
    world.barrier();
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const auto is_of_the_group =
      AnyOf(HasSubstr("[mismatch]"), HasSubstr("[time-out]"), HasSubstr("[peer failed]"));
  EXPECT_THAT(error, is_of_the_group);
  EXPECT_LT(seconds.count(), kTimeoutSeconds + 3);
  // The failure stays, wherever a rank goes on.
  EXPECT_THAT(error_of([&] { model->loss().backward(); }), is_of_the_group);
}

void expect_errors(const std::function<void(Party&)>& disagree) {
  on_all_transports(kRanks, kTimeoutSeconds, [&](World world) { take_part(world, disagree); });
}

at::Tensor x() { return torch::ones({2, 3}); }

TEST(Disagreement, Fault001_OneRankSkipsAUnit) {
  expect_errors([](Party& party) {
    at::Tensor y = x();
    if (!party.is(2)) {
      y = party.model->layers[1](y);
    }
    party.model->layers[3](party.model->layers[2](y)).sum().backward();
  });
}

TEST(Disagreement, Fault004_UnitsOfOneShapeInAnotherOrder) {
  expect_errors([](Party& party) {
    auto& layers = party.model->layers;
    layers[party.is(1) ? 0 : 1](layers[party.is(1) ? 1 : 0](x())).sum().backward();
  });
}

TEST(Disagreement, Fault007_FullParametersOnOneRank) {
  expect_errors([](Party& party) {
    if (party.is(0)) {
      party.sharded.full_parameters();
    }
  });
}

TEST(Disagreement, Fault007_GradNormOnOneRank) {
  expect_errors([](Party& party) {
    if (party.is(2)) {
      grad_norm(party.sharded);
    }
  });
}

TEST(Disagreement, Fault007_SaveOnOneRank) {
  const fsdp::test::TemporaryDirectory directory;
  expect_errors([&](Party& party) {
    if (party.is(0)) {
      checkpoint::save_safetensors(party.sharded, directory.path("model.safetensors"));
    }
  });
}

TEST(Disagreement, Fault007_ACallOnRank0AloneIsNamedThereAndEndsRank1AtItsNextCollective) {
  const fsdp::test::TemporaryDirectory directory;
  on_all_transports(2, 3, [&](World world) {
    const auto model = std::make_shared<Net>();
    const Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    const auto call = [&](const std::string& name, const std::function<void()>& action) {
      model->loss().backward();
      const auto begin = std::chrono::steady_clock::now();
      const std::string error = error_of([&] {
        if (world.rank() == 0) {
          action();
        }
        model->loss().backward();
      });
      EXPECT_THAT(error, AllOf(HasSubstr("in \"" + name),
                               testing::ContainsRegex(" met (all-gather|agree) #"),
                               HasSubstr("unit \"a\""), HasSubstr("make every call on all ranks")));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(seconds.count(), 3);
      world.recover();
    };
    call("save_safetensors",
         [&] { checkpoint::save_safetensors(sharded, directory.path("model.safetensors")); });
    call("full_parameters", [&] { sharded.full_parameters(); });
    call("grad_norm", [&] { grad_norm(sharded); });
  });
}

TEST(Disagreement, Fault008_OneRankCatchesAnErrorAndGoesOn) {
  expect_errors([](Party& party) {
    if (party.is(1)) {
      error_of([&] {
        party.model->layers[1](party.model->layers[0](x()));
        throw std::runtime_error("this rank's own");
      });
    } else {
      party.model->loss().backward();
    }
  });
}

TEST(Disagreement, Fault008_OneRanksBackwardBreaksOff) {
  expect_errors([](Party& party) {
    const at::Tensor y = torch::tanh(party.model->layers[2](party.model->forward(x())));
    if (party.is(1)) {
      y.register_hook([](const at::Tensor&) { throw std::runtime_error("this rank's own"); });
      error_of([&] { party.model->forward(y).sum().backward(); });
    } else {
      party.model->forward(y).sum().backward();
    }
  });
}

TEST(Disagreement, AWeightReadOnOneRank) {
  expect_errors([](Party& party) {
    if (party.is(0)) {
      torch::NoGradGuard no_grad;
      party.model->layers[1]->weight.norm().item<double>();
    }
  });
}

TEST(Disagreement, AWeightReadOnOneRankInTheMiddleOfAForward) {
  expect_errors([](Party& party) {
    const at::Tensor y = party.model->layers[0](x());
    if (party.is(1)) {
      torch::NoGradGuard no_grad;
      party.model->layers[3]->weight.norm().item<double>();
    }
    party.model->layers[1](y);
  });
}

TEST(Disagreement, OneRankSkipsABackward) {
  expect_errors([](Party& party) {
    const at::Tensor loss = party.model->loss();
    if (!party.is(1)) {
      loss.backward();
    }
  });
}

TEST(Disagreement, OneRankEvaluates) {
  expect_errors([](Party& party) {
    if (party.is(1)) {
      torch::NoGradGuard no_grad;
      party.model->loss();
    }
  });
}

TEST(Disagreement, AnOptionThatDiffersIsNamedAloneWithBothValues) {
  run_threads(2, [](World world) {
    const int prefetch = world.rank() == 0 ? 1 : 2;
    const std::string error = error_of([&] {
      fully_shard(std::make_shared<Net>(), world,
                  test_options(units_of<nn::Linear>(), 0, prefetch));
    });
    EXPECT_THAT(error, HasSubstr("on rank 0 option memory.prefetch is 1; on rank 1 option "
                                 "memory.prefetch is 2."));
  });
}

TEST(Disagreement, OneRankFreezesAUnit) {
  expect_errors([](Party& party) {
    if (party.is(1)) {
      party.model->layers[1]->weight.set_requires_grad(false);
      party.model->layers[1]->bias.set_requires_grad(false);
    }
  });
}

}  // namespace
