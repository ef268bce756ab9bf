// SPDX-License-Identifier: Apache-2.0
/// Recurrent layers: one operator takes all of a layer's weights.
#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

nn::LSTM deep_lstm() {
  return nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true).batch_first(true));
}
constexpr int kDeepLstmWeights = 16;

TEST(TouchRecurrent, LstmOfTwoLayersAndDirections) {
  const Traits traits{.units_at_once = kDeepLstmWeights};
  expect_parity(
      [] {
        const at::Tensor x = random({2, 5, 3});
        return training_case(deep_lstm().ptr(),
                             [x](nn::LSTMImpl& of) { return std::get<0>(of.forward(x)); });
      },
      traits);
}

TEST(TouchRecurrent, LstmInSinglePrecision) {
  const Traits traits{.units_at_once = kDeepLstmWeights};
  expect_parity(
      [] {
        const at::Tensor x = at::randn({2, 5, 3});
        Case made = training_case(deep_lstm().ptr(),
                                  [x](nn::LSTMImpl& of) { return std::get<0>(of.forward(x)); });
        made.module->to(torch::kFloat);
        return made;
      },
      traits);
}

TEST(TouchRecurrent, LstmWithoutGradients) {
  const Traits traits{.units_at_once = kDeepLstmWeights};
  expect_parity(
      [] {
        const at::Tensor x = random({2, 5, 3});
        return case_of(deep_lstm().ptr(), [x](nn::LSTMImpl& of, const Trial&) -> Tensors {
          torch::NoGradGuard no_grad;
          return {std::get<0>(of.forward(x)), std::get<0>(of.forward(x * 2))};
        });
      },
      traits);
}

TEST(TouchRecurrent, Gru) {
  const Traits traits{.units_at_once = 8};
  expect_parity(
      [] {
        const at::Tensor x = random({5, 2, 3});
        return training_case(nn::GRU(nn::GRUOptions(3, 4).num_layers(2)).ptr(),
                             [x](nn::GRUImpl& of) { return std::get<0>(of.forward(x)); });
      },
      traits);
}

TEST(TouchRecurrent, ElmanRnn) {
  const Traits traits{.units_at_once = 4};
  expect_parity(
      [] {
        const at::Tensor x = random({5, 2, 3});
        return training_case(nn::RNN(3, 4).ptr(),
                             [x](nn::RNNImpl& of) { return std::get<0>(of.forward(x)); });
      },
      traits);
}

TEST(TouchRecurrent, LstmCellOverTime) {
  const Traits traits{.units_at_once = 4};
  expect_parity(
      [] {
        const at::Tensor x = random({4, 2, 3});
        return training_case(nn::LSTMCell(3, 4).ptr(), [x](nn::LSTMCellImpl& of) {
          auto state = of.forward(x[0]);
          for (int time = 1; time < 4; ++time) {
            state = of.forward(x[time], state);
          }
          return std::get<0>(state);
        });
      },
      traits);
}

TEST(TouchRecurrent, GruCell) {
  const Traits traits{.units_at_once = 4};
  expect_parity(
      [] {
        const at::Tensor x = random({2, 3});
        return training_case(nn::GRUCell(3, 4).ptr(),
                             [x](nn::GRUCellImpl& of) { return of.forward(x, of.forward(x)); });
      },
      traits);
}

}  // namespace
}  // namespace fsdp::test
