// SPDX-License-Identifier: Apache-2.0
/// TorchScript: weights as module attributes, as arguments, in containers, traced, frozen.
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

/// Knows fork, which TorchScript in C++ has no name for.
struct WithFork : torch::jit::Resolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name, torch::jit::GraphFunction& m,
      const torch::jit::SourceRange& loc) override {
    return name == "fork" ? torch::jit::SpecialFormValue::create(torch::jit::prim::fork)
                          : torch::jit::nativeResolver()->resolveValue(name, m, loc);
  }
};

/// A script module with weights "w" [3, 4] and "b" [3] and the given methods.
std::shared_ptr<torch::jit::Module> make_script(const std::string& source) {
  auto made = std::make_shared<torch::jit::Module>("made");
  made->register_parameter("w", random({3, 4}).requires_grad_(), false);
  made->register_parameter("b", random({3}).requires_grad_(), false);
  made->define(source, std::make_shared<WithFork>());
  return made;
}

Case script_case(std::shared_ptr<torch::jit::Module> script,
                 std::function<Tensors(torch::jit::Module&, const Trial&)> step) {
  Case made{.script = script};
  for (const auto& item : script->named_parameters()) {
    made.parameters.emplace_back(item.name, item.value);
  }
  made.step = [script, step](const Trial& trial) { return step(*script, trial); };
  return made;
}

Tensors train(torch::jit::Module& of, const at::Tensor& x) {
  at::Tensor output = of.forward({x}).toTensor();
  loss_of(output).backward();
  return {output};
}

void expect_script_parity(const std::string& source, const Traits& traits = {}) {
  expect_parity(
      [&] {
        const at::Tensor x = random({2, 4});
        return script_case(make_script(source),
                           [x](torch::jit::Module& of, const Trial&) { return train(of, x); });
      },
      traits);
}

// The profiling executor specialises after two runs and optimises after that.
const Traits kManyRuns{.steps = 4};

TEST(TouchScript, ModuleThroughTheProfilingExecutor) {
  expect_script_parity(R"(
    def forward(self, x):
        return torch.tanh(torch.linear(x, self.w, self.b)) * self.b
  )",
                       kManyRuns);
}

TEST(TouchScript, ControlFlowAndCalls) {
  expect_script_parity(R"(
    def project(self, x):
        return torch.matmul(x, self.w.t()) + self.b
    def forward(self, x):
        y = self.project(x)
        for i in range(3):
            if bool(y.sum() > self.b.sum()):
                y = torch.tanh(y) + self.b
            else:
                y = torch.matmul(torch.matmul(y, self.w), self.w.t())
        return y
  )",
                       kManyRuns);
}

TEST(TouchScript, ForkAndWait) {
  const Traits traits{.units_at_once = 4, .has_fixed_order = false};
  expect_script_parity(R"(
    def branch(self, x):
        return torch.linear(x, self.w, self.b)
    def forward(self, x):
        later = fork(self.branch, x)
        y = torch.matmul(x, self.w.t())
        return y * torch.wait(later)
  )",
                       traits);
}

TEST(TouchScript, NestedModules) {
  expect_parity([] {
    auto inner = make_script("def forward(self, x):\n    return torch.linear(x, self.w, self.b)\n");
    auto outer = std::make_shared<torch::jit::Module>("outer");
    outer->register_module("inner", *inner);
    outer->register_parameter("scale", random({3}).requires_grad_(), false);
    outer->define("def forward(self, x):\n    return self.inner.forward(x) * self.scale\n");
    const at::Tensor x = random({2, 4});
    return script_case(outer, [x](torch::jit::Module& of, const Trial&) { return train(of, x); });
  });
}

TEST(TouchScript, UnusedParameter) {
  expect_script_parity("def forward(self, x):\n    return torch.matmul(x, self.w.t())\n");
}

// The module alone holds the weight: no member of a C++ class does.
TEST(TouchScript, UnusedParameterHeldByTheModuleAlone) {
  run_threads(1, [](const World& world) {
    const auto script =
        make_script("def forward(self, x):\n    return torch.matmul(x, self.w.t())\n");
    const Sharded sharded = fully_shard(*script, world, strict_options());
    train(*script, random({2, 4}));
    EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    EXPECT_FALSE(sharded.parameters()[1].grad().defined());
  });
}

TEST(TouchScript, FunctionsWithWeightsInContainers) {
  const Traits traits{.units_at_once = 4, .steps = 4};
  expect_parity(
      [] {
        std::shared_ptr<torch::jit::CompilationUnit> unit = torch::jit::compile(R"(
          def of_list(x, weights: List[Tensor]):
              for w in weights:
                  x = torch.tanh(torch.matmul(x, w.t()))
              return torch.cat([x.flatten(), torch.cat([w.flatten() for w in weights])])
          def of_dict(x, weights: Dict[str, Tensor]):
              return torch.linear(x, weights["w"], weights["b"])
          def of_optional(x, w, b: Optional[Tensor]):
              return torch.linear(x, w, b)
        )");
        const at::Tensor x = random({2, 4});
        return case_of(two_layers(), [=](TwoLayersImpl& of, const Trial&) -> Tensors {
          c10::List<at::Tensor> list({of.first->weight, of.second->weight});
          c10::Dict<std::string, at::Tensor> dict;
          dict.insert("w", of.first->weight);
          dict.insert("b", of.first->bias);
          at::Tensor a = unit->run_method("of_list", x, list).toTensor();
          at::Tensor b = unit->run_method("of_dict", x, dict).toTensor();
          at::Tensor c =
              unit->run_method("of_optional", b, of.second->weight, of.second->bias).toTensor();
          at::Tensor d =
              unit->run_method("of_optional", b, of.second->weight, c10::IValue()).toTensor();
          (loss_of(a) + loss_of(b) + loss_of(c) + loss_of(d)).backward();
          return {a, b, c, d};
        });
      },
      traits);
}

TEST(TouchScript, TracedAfterSharding) {
  const Traits traits{.steps = 5};
  expect_parity(
      [] {
        const at::Tensor x = random({2, 4});
        auto executor = std::make_shared<std::unique_ptr<torch::jit::GraphExecutor>>();
        return case_of(two_layers(), [=](TwoLayersImpl& of, const Trial&) -> Tensors {
          torch::jit::Stack stack = {x, of.first->weight, of.first->bias};
          if (*executor == nullptr) {
            const auto body = [](torch::jit::Stack in) -> torch::jit::Stack {
              return {at::tanh(at::linear(in[0].toTensor(), in[1].toTensor(), in[2].toTensor()))};
            };
            auto traced = torch::jit::tracer::trace(
                stack, body, [](const at::Tensor&) { return std::string(); });
            *executor = std::make_unique<torch::jit::GraphExecutor>(traced.first->graph, "traced");
          }
          (*executor)->run(stack);
          at::Tensor hidden = stack.back().toTensor();
          at::Tensor output = of.second->forward(hidden);
          loss_of(output).backward();
          return {hidden, output};
        });
      },
      traits);
}

TEST(TouchScript, FrozenAfterShardingFollowsTheWeights) {
  expect_parity([] {
    const at::Tensor x = random({2, 4});
    auto frozen = std::make_shared<std::unique_ptr<torch::jit::Module>>();
    auto script =
        make_script("def forward(self, x):\n    return torch.linear(x, self.w, self.b)\n");
    return script_case(script, [=](torch::jit::Module& of, const Trial& trial) -> Tensors {
      Tensors outputs = train(of, x);
      if (*frozen == nullptr) {
        torch::jit::Module copy = of.copy();  // shares the weights
        copy.eval();
        *frozen = std::make_unique<torch::jit::Module>(torch::jit::freeze(copy));
      }
      trial.free_weights();
      torch::NoGradGuard no_grad;
      outputs.push_back((*frozen)->forward({x}).toTensor());
      return outputs;
    });
  });
}

TEST(TouchScript, FrozenBeforeShardingIsRefused) {
  run_threads(1, [](const World& world) {
    auto script =
        make_script("def forward(self, x):\n    return torch.linear(x, self.w, self.b)\n");
    torch::jit::Module copy = script->copy();
    copy.eval();
    torch::jit::Module frozen = torch::jit::freeze(copy);
    const std::string error = error_of([&] { fully_shard(*script, world, strict_options()); });
    EXPECT_NE(error.find("is used by"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace fsdp::test
