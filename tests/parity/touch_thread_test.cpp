// SPDX-License-Identifier: Apache-2.0
/// Weights used by other threads than the one that trains. Where the order of operators is not
/// fixed, several ranks share one unit: a gather is a collective, and ranks must agree on its
/// order.
#include <ATen/Parallel.h>

#include <array>
#include <future>
#include <thread>

#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

void expect_two_layer_parity(const std::function<Tensors(TwoLayersImpl&, const at::Tensor&)>& step,
                             const Traits& traits = {}) {
  expect_parity(
      [&] {
        const at::Tensor x = random({3, 4});
        return case_of(two_layers(),
                       [x, step](TwoLayersImpl& of, const Trial&) { return step(of, x); });
      },
      traits);
}

TEST(TouchThread, ForwardOnAnotherThread) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    at::Tensor output;
    std::thread([&] { output = of.forward(x); }).join();
    loss_of(output).backward();
    return {output};
  });
}

TEST(TouchThread, BackwardOnAnotherThread) {
  expect_two_layer_parity([](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
    at::Tensor output = of.forward(x);
    std::thread([&] { loss_of(output).backward(); }).join();
    return {output};
  });
}

TEST(TouchThread, TwoThreadsInForward) {
  const Traits traits{.units_at_once = 4, .has_fixed_order = false, .steps = 8};
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
        std::array<at::Tensor, 2> outputs;
        std::thread first([&] { outputs[0] = of.forward(x); });
        std::thread second([&] { outputs[1] = of.forward(x * 2); });
        first.join();
        second.join();
        (loss_of(outputs[0]) + loss_of(outputs[1])).backward();
        return {outputs[0], outputs[1]};
      },
      traits);
}

TEST(TouchThread, ParallelFor) {
  const Traits traits{.units_at_once = 4, .has_fixed_order = false};
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
        Tensors outputs(6);
        at::parallel_for(0, 6, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            outputs[static_cast<std::size_t>(i)] = of.forward(x * static_cast<double>(i));
          }
        });
        loss_of(at::stack(outputs)).backward();
        return outputs;
      },
      traits);
}

TEST(TouchThread, InteropPool) {
  const Traits traits{.units_at_once = 4, .has_fixed_order = false};
  expect_two_layer_parity(
      [](TwoLayersImpl& of, const at::Tensor& x) -> Tensors {
        std::promise<at::Tensor> promise;
        at::launch([&] { promise.set_value(of.first->forward(x)); });
        at::Tensor here = of.first->forward(x * 3);
        at::Tensor there = promise.get_future().get();
        at::Tensor output = of.second->forward((here + there).tanh());
        loss_of(output).backward();
        return {here, there, output};
      },
      traits);
}

}  // namespace
}  // namespace fsdp::test
