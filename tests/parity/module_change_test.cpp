// SPDX-License-Identifier: Apache-2.0
/// What a module gets or loses after it was sharded, by its number in docs/reference/faults.md: it
/// is noticed and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

/// A class of a program's own, whose member no registry shows.
struct Scale : nn::Module {
  explicit Scale(std::int64_t width) : factor(register_parameter("factor", torch::ones({width}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
};

struct Net : nn::Module {
  Net()
      : a(register_module("a", nn::Linear(4, 4))),
        b(register_module("b", nn::Linear(4, 4))),
        scale(register_module("scale", std::make_shared<Scale>(4))),
        body(register_module("body", nn::Sequential(nn::Linear(4, 4), nn::Tanh()))) {}
  at::Tensor forward() {
    at::Tensor x = body->forward(b(torch::tanh(a(torch::ones({2, 4})))));
    x = scale->forward(x);
    if (extra.defined()) {
      x = x * extra;
    }
    return x.square().mean();
  }
  nn::Linear a, b;
  std::shared_ptr<Scale> scale;
  nn::Sequential body;
  at::Tensor extra;
};

/// With a step of training behind it, and an optimizer of each kind, which hold handles.
struct Trained {
  explicit Trained(const World& world, Options options = test_options(units_of<nn::Linear>()))
      : sharded(fully_shard(model, world, std::move(options))),
        own(sharded),
        torchs(sharded.parameters(), 0.1) {
    step();
  }
  void step() {
    torchs.zero_grad();
    model->forward().backward();
    torchs.step();
  }

  std::shared_ptr<Net> model = std::make_shared<Net>();
  Sharded sharded;
  optim::AdamW own;
  torch::optim::SGD torchs;
};

struct Change {
  std::string what;
  std::function<void(Net& model)> act;
  std::string named;
};

/// Those that registries and members of torch::nn's layers show.
std::vector<Change> shown_changes() {
  return {
      {"register_parameter",
       [](Net& model) { model.extra = model.register_parameter("extra", torch::ones({4})); },
       "parameter \"extra\" was registered"},
      {"register_parameter of a part",
       [](Net& model) { model.a->register_parameter("extra", torch::ones({4})); },
       "parameter \"a.extra\" was registered"},
      {"register_buffer", [](Net& model) { model.b->register_buffer("seen", torch::ones({1})); },
       "buffer \"b.seen\" was registered"},
      {"register_module", [](Net& model) { model.register_module("c", nn::Linear(4, 4)); },
       "module \"c\" was registered"},
      {"a layer more in a Sequential", [](Net& model) { model.body->push_back(nn::Linear(4, 4)); },
       "module \"body.2\" was registered"},
      {"replace_module", [](Net& model) { model.b = model.replace_module("b", nn::Linear(4, 4)); },
       "module \"b\" was replaced"},
      {"replace_module, by another shape",
       [](Net& model) {
         model.b = model.replace_module("b", nn::Linear(nn::LinearOptions(4, 4).bias(false)));
       },
       "module \"b\" was replaced"},
      {"unregister_module", [](Net& model) { model.unregister_module("scale"); },
       "module \"scale\" was removed"},
      {"a member assigned", [](Net& model) { model.b->weight = model.a->weight; },
       "assigned to \"b.weight\""},
      {"a member assigned a tensor of its own",
       [](Net& model) { model.b->bias = torch::zeros({4}, torch::requires_grad()); },
       "assigned to \"b.bias\""},
  };
}

TEST(ModuleChange, Fault140_WhatRegistriesAndLayersShowIsNamedAtTheNextForward) {
  for (const Change& change : shown_changes()) {
    SCOPED_TRACE(change.what);
    run_threads(2, [&](const World& world) {
      Trained trained(world);
      change.act(*trained.model);
      EXPECT_THAT(error_of([&] { trained.model->forward(); }),
                  AllOf(HasSubstr(change.named), HasSubstr("after fully_shard()"),
                        HasSubstr("To shard it again")));
    });
  }
}

TEST(ModuleChange, Fault140_ASaveThatComesFirstNamesIt) {
  for (const Change& change : shown_changes()) {
    SCOPED_TRACE(change.what);
    const TemporaryDirectory directory;
    run_threads(2, [&](const World& world) {
      Trained trained(world);
      change.act(*trained.model);
      EXPECT_THAT(error_of([&] {
                    checkpoint::save_safetensors(trained.sharded,
                                                 directory.path("model.safetensors"));
                  }),
                  HasSubstr(change.named));
    });
  }
}

TEST(ModuleChange, Fault140_WhatOnlyTheGraphShowsIsNamedByTheFirstBackward) {
  const std::vector<Change> changes = {
      {"a layer in a member", [](Net& model) { model.b = nn::Linear(4, 4); }, "took \"b."},
      {"a member of a program's own class",
       [](Net& model) { model.scale->factor = torch::ones({4}, torch::requires_grad()); },
       "\"scale.factor\""},
  };
  for (const Change& change : changes) {
    for (const bool is_before : {true, false}) {
      SCOPED_TRACE(change.what);
      run_threads(2, [&](const World& world) {
        if (is_before) {
          auto model = std::make_shared<Net>();
          change.act(*model);
          Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
          EXPECT_THAT(error_of([&] { model->forward().backward(); }), HasSubstr(change.named));
          return;
        }
        Trained trained(world);
        change.act(*trained.model);
        EXPECT_THAT(error_of([&] { trained.step(); }), HasSubstr(change.named));
      });
    }
  }
}

TEST(ModuleChange, Fault034_AnOptimizerDoesNotHideAParameterThatNothingUses) {
  run_threads(2, [](const World& world) {
    struct Two : nn::Module {
      Two()
          : a(register_module("a", std::make_shared<Scale>(4))),
            b(register_module("b", std::make_shared<Scale>(4))) {
        b->factor = a->factor;
      }
      at::Tensor forward() { return (a->factor * b->factor).sum(); }
      std::shared_ptr<Scale> a, b;
    };
    const auto model = std::make_shared<Two>();
    Sharded sharded = fully_shard(model, world, test_options({}));
    const optim::AdamW optimizer(sharded);
    EXPECT_THAT(error_of([&] { model->forward().backward(); }), HasSubstr("\"b.factor\""));
  });
}

TEST(ModuleChange, Fault140_TyingIsRefusedOnceEitherIsSharded) {
  run_threads(2, [](const World& world) {
    Trained trained(world);
    nn::Linear other(4, 4);
    const auto refuses = [](nn::Module& from, nn::Module& to) {
      EXPECT_THAT(error_of([&] { tie_weights(from, "weight", to, "weight"); }),
                  AllOf(HasSubstr("[tie_weights]"), HasSubstr("before fully_shard()")));
    };
    refuses(*trained.model->a, *trained.model->b);
    refuses(*other, *trained.model->b);
    refuses(*trained.model->a, *other);
    trained.step();
  });
}

TEST(ModuleChange, Fault140_WhatIsIgnoredOrHasNoTensorsMayComeAndGo) {
  run_threads(2, [](const World& world) {
    Options options = test_options(units_of<nn::Linear>());
    options.ignore = {"scale.*"};
    Trained trained(world, options);
    Net& model = *trained.model;
    model.register_module("dropout", nn::Dropout());
    model.scale->register_parameter("other", torch::ones({4}));
    model.scale->factor = torch::ones({4}, torch::requires_grad());
    trained.step();
    model.unregister_module("dropout");
    trained.step();
    // An input that wants a gradient is no weight, and a part of the module may rest.
    model.a(torch::ones({3, 4}, torch::requires_grad())).sum().backward();
    trained.step();
  });
}

TEST(ModuleChange, Fault140_TheWayThatTheErrorNamesShardsAgain) {
  run_threads(2, [](const World& world) {
    const auto model = std::make_shared<Net>();
    std::vector<at::Tensor> copies;
    at::Tensor expected;
    {
      Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
      expected = model->forward().detach();
      model->extra = model->register_parameter("extra", torch::full({4}, 2.0));
      EXPECT_THAT(error_of([&] { model->forward(); }), HasSubstr("\"extra\" was registered"));
      const auto whole = sharded.full_parameters();
      for (const NamedShard& parameter : sharded.named_parameters()) {
        copies.push_back(parameter.parameter.detach().clone());
      }
    }
    for (std::size_t i = 0, next = 0; i < model->parameters().size(); ++i) {
      if (model->parameters()[i].is_same(model->extra)) {
        continue;
      }
      model->parameters()[i].set_data(copies[next++]);
    }
    const std::size_t before = copies.size();
    copies.clear();  // else two tensors would use the memory
    Sharded sharded = fully_shard(model, world, test_options(units_of<nn::Linear>()));
    EXPECT_EQ(sharded.parameters().size(), before + 1);
    EXPECT_TRUE(torch::allclose(model->forward(), 4 * expected));
    model->forward().backward();
  });
}

}  // namespace
}  // namespace fsdp::test
