// SPDX-License-Identifier: Apache-2.0
/// What a module gets after it was sharded and only graphs and touches show, by its number in
/// docs/reference/faults.md: what cannot be right is refused, what may be meant is told of once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/fsdp.hpp"
#include "support/error_of.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A class of a program's own, whose members no registry shows. Its parts may run inside of
/// recompute(), or of a backward inside of backward.
struct Net : nn::Module {
  Net() {
    first = register_parameter("first", torch::full({4}, 0.5));
    second = register_parameter("second", torch::full({4}, 0.25));
    last = register_parameter("last", torch::ones({2, 4}));
  }
  at::Tensor part(const at::Tensor& x) const {
    at::Tensor y = torch::tanh(x * first) * second;
    return extra.defined() ? y * extra : y;
  }
  at::Tensor first, second, last;
  at::Tensor extra;  ///< registered nowhere
};

/// Runs `part` once more in backward, by a backward of its own.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, Net* net) {
    ctx->save_for_backward({x});
    ctx->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    return net->part(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const torch::AutoGradMode grad_mode(true);
    const auto* net = reinterpret_cast<Net*>(ctx->saved_data["net"].toInt());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({net->part(x)}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};

enum class Way { kPlain, kRecomputed, kReentrant };

struct Trained {
  Trained(const World& world, Way way_in)
      : way(way_in), sharded(fully_shard(model, world, test_options({}))) {
    step();
  }
  void step() {
    const at::Tensor x = torch::ones({2, 4}) * model->last;
    at::Tensor y;
    switch (way) {
      case Way::kPlain: y = model->part(x); break;
      case Way::kRecomputed:
        y = recompute([&](const at::Tensor& of) { return model->part(of); }, x);
        break;
      case Way::kReentrant: y = Reentrant::apply(x, model.get()); break;
    }
    y.square().mean().backward();
    sharded.zero_grad();
  }

  std::shared_ptr<Net> model = std::make_shared<Net>();
  Way way;
  Sharded sharded;
};

/// What two ranks write when `change` comes after the first step, and two steps follow.
std::string told(Way way, const std::function<void(Net& model)>& change) {
  testing::internal::CaptureStderr();
  run_threads(2, [&](const World& world) {
    Trained trained(world, way);
    change(*trained.model);
    trained.step();
    trained.step();
  });
  return testing::internal::GetCapturedStderr();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class Strangers : public testing::TestWithParam<Way> {};

TEST_P(Strangers, Fault140_ATrainingTensorThatComesLaterIsToldOfOnce) {
  const std::string text =
      told(GetParam(), [](Net& model) { model.extra = torch::ones({4}, torch::requires_grad()); });
  EXPECT_EQ(count(text, "is in no shard: Float [4]"), 1) << text;
}

TEST_P(Strangers, Fault140_OneOfAnotherShapeInPlaceOfAWeightIsToldOf) {
  const std::string text =
      told(GetParam(), [](Net& model) { model.first = torch::ones({1}, torch::requires_grad()); });
  EXPECT_EQ(count(text, "is in no shard: Float [1]"), 1) << text;
}

TEST_P(Strangers, Fault140_OneOfItsShapeIsRefused) {
  run_threads(2, [](const World& world) {
    Trained trained(world, GetParam());
    trained.model->first = torch::ones({4}, torch::requires_grad());
    EXPECT_THAT(error_of([&] { trained.step(); }),
                AllOf(HasSubstr("no operator of this step took \"first\""), HasSubstr("[4]")));
  });
}

TEST_P(Strangers, Fault140_AMemberThatIsAssignedAnotherWeightIsToldOf) {
  const std::string text = told(GetParam(), [](Net& model) { model.second = model.first; });
  EXPECT_EQ(count(text, "no operator took \"second\", and \"first\" was taken in its place"), 1)
      << text;
}

TEST_P(Strangers, Fault140_NothingIsSaidOfAModuleThatStaysAsItIs) {
  EXPECT_EQ(told(GetParam(), [](Net&) {}), "");
}

INSTANTIATE_TEST_SUITE_P(Ways, Strangers,
                         testing::Values(Way::kPlain, Way::kRecomputed, Way::kReentrant));

TEST(Stranger, Fault140_InputsThatTrainAreNotTakenForWeights) {
  testing::internal::CaptureStderr();
  run_threads(2, [](const World& world) {
    Trained trained(world, Way::kPlain);
    for (std::int64_t rows = 1; rows < 40; ++rows) {
      const at::Tensor input = torch::ones({rows, 1}, torch::requires_grad());
      trained.model->part(input * trained.model->last[0]).sum().backward();
      trained.sharded.zero_grad();
    }
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Stranger, Fault140_OfManyKindsSomeAreToldOf) {
  testing::internal::CaptureStderr();
  run_threads(2, [](const World& world) {
    Trained trained(world, Way::kPlain);
    trained.model->extra = torch::ones({4});
    for (std::int64_t rows = 1; rows < 20; ++rows) {
      trained.model->extra = torch::ones({rows, 1, 4}, torch::requires_grad());
      trained.step();
      trained.step();
    }
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "is in no shard"), 8) << text;
  EXPECT_THAT(text, HasSubstr("[8, 1, 4] (others are not told of)"));
}

TEST(Stranger, Fault140_LayersThatAreLeftOutForOthersAreNotTakenForAssigned) {
  testing::internal::CaptureStderr();
  run_threads(2, [](const World& world) {
    struct Branches : nn::Module {
      Branches() {
        for (const char* name : {"a", "b"}) {
          branches.push_back(register_module(name, nn::Linear(4, 4)));
        }
        last = register_module("last", nn::Linear(nn::LinearOptions(4, 4).bias(false)));
      }
      nn::Linear last = nullptr;
      std::vector<nn::Linear> branches;
    };
    const auto model = std::make_shared<Branches>();
    const Sharded sharded = fully_shard(model, world, test_options({}));
    for (const std::size_t i : {0, 1, 1, 0}) {
      model->branches[i](torch::ones({2, 4})).sum().backward();
    }
    // Both, then one of them twice as often, for two forwards in one step.
    const auto both = [&](bool first, bool second) {
      at::Tensor x = torch::ones({2, 4});
      for (int i = 0; i < (second ? 1 : 2); ++i) {
        x = model->last(first ? model->branches[0](x) : x);
        x = second ? model->branches[1](x) : x;
      }
      x.sum().backward();
    };
    both(true, true);
    both(true, false);
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

struct ScriptChange {
  std::string what;
  std::function<void(torch::jit::Module& model)> act;
  std::string named;
};

torch::jit::Module make_script() {
  torch::jit::Module inner("inner");
  inner.register_parameter("w", torch::full({3, 4}, 0.5).requires_grad_(), false);
  inner.register_buffer("shift", torch::zeros({3}));
  inner.define("def forward(self, x):\n    return torch.matmul(x, self.w.t()) + self.shift\n");
  torch::jit::Module outer("outer");
  outer.register_module("inner", inner);
  outer.register_parameter("scale", torch::ones({3}).requires_grad_(), false);
  outer.register_attribute("steps", c10::IntType::get(), 0);
  outer.define(
      "def forward(self, x):\n    self.steps = self.steps + 1\n"
      "    return self.inner.forward(x) * self.scale\n");
  return outer;
}

std::vector<ScriptChange> script_changes() {
  using torch::jit::Module;
  return {
      {"a parameter of a part",
       [](Module& model) {
         model.attr("inner").toModule().setattr("w", torch::ones({3, 4}, torch::requires_grad()));
       },
       "parameter \"inner.w\" was replaced"},
      {"a buffer",
       [](Module& model) { model.attr("inner").toModule().setattr("shift", torch::ones({3})); },
       "buffer \"inner.shift\" was replaced"},
      {"a parameter by another one",
       [](Module& model) {
         model.attr("inner").toModule().register_parameter("v", torch::ones({3}), false);
       },
       "parameter \"inner.v\" was registered"},
      {"a part", [](Module& model) { model.register_module("more", make_script()); },
       "module \"more\" was registered"},
      {"a part for another",
       [](Module& model) {
         // Of the same type, or the setter refuses it.
         model.setattr("inner", model.attr("inner").toModule().deepcopy()._ivalue());
       },
       "module \"inner\" was replaced"},
  };
}

TEST(ScriptChange, Fault140_WhatATorchScriptModuleGetsLaterIsNamedByTheNextStepAndSave) {
  const TemporaryDirectory directory;
  for (const ScriptChange& change : script_changes()) {
    for (const bool saves : {false, true}) {
      SCOPED_TRACE(change.what);
      run_threads(2, [&](const World& world) {
        torch::jit::Module model = make_script();
        const Sharded sharded = fully_shard(model, world, test_options({}));
        const auto forward = [&] { return model.forward({torch::ones({2, 4})}).toTensor(); };
        for (int step = 0; step < 3; ++step) {
          forward().sum().backward();
        }
        change.act(model);
        EXPECT_THAT(error_of([&] {
                      saves ? checkpoint::save_safetensors(sharded,
                                                           directory.path("model.safetensors"))
                            : forward().sum().backward();
                    }),
                    AllOf(HasSubstr(change.named), HasSubstr("after fully_shard()"),
                          HasSubstr("To shard it again")));
      });
    }
  }
}

TEST(ScriptChange, Fault140_WhatIsIgnoredOrNoTensorMayChange) {
  run_threads(2, [](const World& world) {
    torch::jit::Module model = make_script();
    Options options = test_options({});
    options.ignore = {"inner.*"};
    const Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 3; ++step) {
      model.forward({torch::ones({2, 4})}).toTensor().sum().backward();
      model.attr("inner").toModule().setattr("w", torch::ones({3, 4}));
    }
    EXPECT_EQ(model.attr("steps").toInt(), 3);
  });
}

}  // namespace
}  // namespace fsdp::test
