// SPDX-License-Identifier: Apache-2.0
/// Custom autograd functions over weights, and backward passes inside backward passes.
#include <future>
#include <thread>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// x @ w.t() with the weight saved and used by hand.
struct Product : Function<Product> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return at::matmul(x, w.t());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {at::matmul(grads[0], saved[1]), at::matmul(grads[0].t(), saved[0])};
  }
};

/// Looks at the weight in backward only.
struct ScaledInBackward : Function<ScaledInBackward> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({w});
    return x * 2;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor w = ctx->get_saved_variables()[0];
    return {grads[0] * w.sum(), grads[0].sum() * w};
  }
};

using Segment = std::function<at::Tensor(const at::Tensor&)>;

struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment held) : segment(std::move(held)) {}
  Segment segment;
};

/// Activation checkpointing as users write it: forward without a graph, again with one in backward,
/// which runs a backward of its own.
struct Checkpoint : Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* ctx, const Segment& segment, const at::Tensor& x) {
    ctx->saved_data["segment"] =
        c10::IValue::make_capsule(c10::make_intrusive<SegmentHolder>(segment));
    ctx->save_for_backward({x});
    torch::NoGradGuard no_grad;
    return segment(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<SegmentHolder>(ctx->saved_data["segment"].toCapsule());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    torch::AutoGradMode with_grad(true);
    holder->segment(x).backward(grads[0]);
    return {at::Tensor(), x.grad()};
  }
};

void expect_two_layer_parity(const std::function<Tensors(TwoLayersImpl&, const at::Tensor&)>& step,
                             std::vector<std::int64_t> sizes = {3, 4}) {
  expect_parity([&] {
    const at::Tensor x = random(sizes).requires_grad_();
    return case_of(two_layers(), [x, step](TwoLayersImpl& of, const Trial&) {
      x.mutable_grad().reset();
      Tensors outputs = step(of, x);
      outputs.push_back(x.grad());
      return outputs;
    });
  });
}

TEST(TouchFunction, SavedWeights) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    at::Tensor hidden = Product::apply(x, of.first->weight) + of.first->bias;
    at::Tensor output = Product::apply(hidden, of.second->weight) + of.second->bias;
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchFunction, WeightReadInBackwardOnly) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    at::Tensor output = of.second->forward(ScaledInBackward::apply(x, of.first->weight)
                                               .tanh()
                                               .sum(0, true)
                                               .repeat({1, 2})
                                               .narrow(1, 0, 6));
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchFunction, NoWeightReadInForward) {
  expect_parity([] {
    const at::Tensor x = random({3, 4}).requires_grad_();
    const TwoLayers module = two_layers();
    return case_of(module, [x](TwoLayersImpl& of, const Trial&) -> Tensors {
      x.mutable_grad().reset();
      loss_of(ScaledInBackward::apply(x, of.first->weight)).backward();
      return {x.grad()};
    });
  });
}

TEST(TouchFunction, CheckpointedSegments) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment first = [&](const at::Tensor& in) { return of.first->forward(in).tanh(); };
    const Segment second = [&](const at::Tensor& in) { return of.second->forward(in).tanh(); };
    at::Tensor output = Checkpoint::apply(second, Checkpoint::apply(first, x));
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchFunction, OneParameterInTwoCheckpointedSegments) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment segment = [&](const at::Tensor& in) {
      return at::matmul(of.first->forward(in), of.first->weight) + in;
    };
    at::Tensor output = Checkpoint::apply(segment, Checkpoint::apply(segment, x));
    loss_of(output).backward();
    return {output};
  });
}

// The unit is complete, and reduced, before the segment's gradients arrive.
TEST(TouchFunction, OneParameterInsideAndOutsideACheckpoint) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment segment = [&](const at::Tensor& in) {
      return at::matmul(of.first->forward(in), of.first->weight) + in;
    };
    at::Tensor output = of.forward(Checkpoint::apply(segment, x));
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchFunction, CheckpointInsideACheckpoint) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment inner = [&](const at::Tensor& in) { return of.first->forward(in).tanh(); };
    const Segment outer = [&](const at::Tensor& in) {
      return of.second->forward(Checkpoint::apply(inner, in));
    };
    at::Tensor output = Checkpoint::apply(outer, x);
    loss_of(output).backward();
    return {output};
  });
}

/// `depth` checkpoints, each inside the one before.
at::Tensor nested(const Segment& layer, const Segment& innermost, int depth, const at::Tensor& x) {
  if (depth == 0) {
    return innermost(x);
  }
  return Checkpoint::apply(Segment([layer, innermost, depth](const at::Tensor& in) {
                             return nested(layer, innermost, depth - 1, layer(in));
                           }),
                           x);
}

// Past 60 levels autograd continues on another thread.
TEST(TouchFunction, SeventyBackwardsInsideEachOther) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment layer = [&](const at::Tensor& in) { return (in * of.first->bias.sum()).sin(); };
    const Segment innermost = [&](const at::Tensor& in) { return of.forward(in); };
    at::Tensor output = nested(layer, innermost, 70, x);
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchFunction, FirstWeightOfBackwardSeventyLevelsDeep) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    const Segment layer = [](const at::Tensor& in) { return in.sin(); };
    const Segment innermost = [&](const at::Tensor& in) { return of.forward(in); };
    at::Tensor output = nested(layer, innermost, 70, x);
    loss_of(output).backward();
    return {output};
  });
}

// Two models in two threads: the inner one's first weight turns up on a thread of autograd's pool
// while the other's backward is the one that began last.
TEST(TouchFunction, DeepBackwardEndsWithItsOwnThread) {
  std::promise<void> deep_has_begun, other_has_begun, deep_has_ended;
  const at::Tensor x = random({3, 4}).requires_grad_();
  std::thread other([&] {
    run_threads(1, [&](const World& world) {
      const TwoLayers module = two_layers();
      const Sharded sharded = shard_each(*module, world);
      at::Tensor output = module->forward(x.detach());
      output.register_hook([&](const at::Tensor&) -> void {
        other_has_begun.set_value();
        deep_has_ended.get_future().wait();
      });
      deep_has_begun.get_future().wait();
      loss_of(output).backward();
      EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    });
  });
  run_threads(1, [&](const World& world) {
    const TwoLayers module = two_layers();
    const Sharded sharded = shard_each(*module, world);
    const Segment layer = [](const at::Tensor& in) { return in.sin(); };
    const Segment innermost = [&](const at::Tensor& in) { return module->forward(in); };
    at::Tensor output = nested(layer, innermost, 70, x);
    output.register_hook([&](const at::Tensor&) -> void {
      deep_has_begun.set_value();
      other_has_begun.get_future().wait();
    });
    loss_of(output).backward();
    EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    deep_has_ended.set_value();
  });
  other.join();
}

}  // namespace
}  // namespace fsdp::test
