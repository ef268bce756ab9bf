// SPDX-License-Identifier: Apache-2.0
/// An exception of the user's code leaves nothing behind: after zero_grad() the next step is exact.
#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct UserError : std::runtime_error {
  UserError() : std::runtime_error("thrown by the user") {}
};

enum class Place { kNowhere, kForward, kBackward };

/// The identity, unless it throws.
struct Fragile : Function<Fragile> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Place place) {
    ctx->saved_data["throws"] = place == Place::kBackward;
    if (place == Place::kForward) {
      throw UserError();
    }
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (ctx->saved_data["throws"].toBool()) {
      throw UserError();
    }
    return {grads[0], at::Tensor()};
  }
};

/// `attempt` throws; then comes a whole step.
void expect_next_step_exact(const std::function<void(TwoLayersImpl&, const at::Tensor&)>& attempt) {
  expect_parity([&] {
    const at::Tensor x = random({3, 4});
    return case_of(two_layers(), [x, attempt](TwoLayersImpl& of, const Trial& trial) -> Tensors {
      EXPECT_NE(error_of([&] { attempt(of, x); }).find("thrown by the user"), std::string::npos);
      trial.zero_grad();
      at::Tensor output = of.forward(x);
      loss_of(output).backward();
      return {output};
    });
  });
}

TEST(TouchRecovery, ForwardThrowsBetweenTheLayers) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    of.first->forward(x);
    throw UserError();
  });
}

TEST(TouchRecovery, ForwardOfAFunctionThrows) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    of.second->forward(Fragile::apply(of.first->forward(x), Place::kForward));
  });
}

TEST(TouchRecovery, BackwardOfAFunctionThrowsBetweenTheLayers) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    loss_of(of.second->forward(Fragile::apply(of.first->forward(x), Place::kBackward))).backward();
  });
}

TEST(TouchRecovery, BackwardThrowsBeforeAnyWeight) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    loss_of(Fragile::apply(of.forward(x), Place::kBackward)).backward();
  });
}

TEST(TouchRecovery, HookOfAnActivationThrows) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    at::Tensor hidden = of.first->forward(x);
    hidden.register_hook([](const at::Tensor& grad) -> at::Tensor {
      (void)grad;
      throw UserError();
    });
    loss_of(of.second->forward(hidden)).backward();
  });
}

TEST(TouchRecovery, HookOfAWeightThrows) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    at::Tensor output = of.forward(x);
    const unsigned hook = of.first->weight.register_hook([](const at::Tensor& grad) -> at::Tensor {
      (void)grad;
      throw UserError();
    });
    std::string error = error_of([&] { loss_of(output).backward(); });
    of.first->weight.remove_hook(hook);
    throw std::runtime_error(error);
  });
}

TEST(TouchRecovery, ForwardThrowsInsideACheckpointsBackward) {
  expect_next_step_exact([](TwoLayersImpl& of, const at::Tensor& x) {
    at::Tensor hidden = of.first->forward(x);
    hidden.register_hook([&](const at::Tensor& grad) -> at::Tensor {
      torch::AutoGradMode with_grad(true);
      loss_of(of.second->forward(Fragile::apply(of.first->forward(x), Place::kBackward)))
          .backward();
      return grad;
    });
    loss_of(of.second->forward(hidden)).backward();
  });
}

TEST(TouchRecovery, OperatorThrowsOverAWrongShape) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    return case_of(two_layers(), [x](TwoLayersImpl& of, const Trial&) -> Tensors {
      EXPECT_ANY_THROW(of.first->forward(x.t()));
      EXPECT_ANY_THROW(at::add(of.first->weight, of.second->weight));
      at::Tensor output = of.forward(x);
      loss_of(output).backward();
      return {output};
    });
  });
}

TEST(TouchRecovery, ScriptRaises) {
  expect_parity([] {
    const at::Tensor x = random({3, 4});
    std::shared_ptr<torch::jit::CompilationUnit> unit = torch::jit::compile(R"(
      def f(x, w):
          y = torch.matmul(x, w.t())
          assert bool(y.sum() != y.sum()), "thrown by the user"
          return y
    )");
    return case_of(two_layers(), [=](TwoLayersImpl& of, const Trial&) -> Tensors {
      EXPECT_ANY_THROW(unit->run_method("f", x, of.first->weight));
      at::Tensor output = of.forward(x);
      loss_of(output).backward();
      return {output};
    });
  });
}

}  // namespace
}  // namespace fsdp::test
