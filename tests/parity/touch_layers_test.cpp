// SPDX-License-Identifier: Apache-2.0
/// Layers of torch::nn and operators over weights, sharded, bit for bit as unsharded.
#include "parity/touch_support.hpp"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

/// A layer with one input.
template <class Layer>
void expect_layer_parity(const std::function<Layer()>& make, std::vector<std::int64_t> input,
                         Traits traits = {}) {
  expect_parity(
      [&] {
        const Layer layer = make();
        const at::Tensor x = random(input).requires_grad_();
        return case_of(layer.ptr(), [x](auto& of, const Trial&) -> Tensors {
          at::Tensor output = of.forward(x);
          x.mutable_grad().reset();
          loss_of(output).backward();
          return {output, x.grad()};
        });
      },
      traits);
}

TEST(TouchLayers, Linear) {
  expect_layer_parity<nn::Linear>([] { return nn::Linear(5, 3); }, {4, 5});
}

TEST(TouchLayers, LinearWithoutBias) {
  expect_layer_parity<nn::Linear>([] { return nn::Linear(nn::LinearOptions(5, 3).bias(false)); },
                                  {2, 4, 5});
}

TEST(TouchLayers, Bilinear) {
  expect_parity([] {
    const at::Tensor x = random({4, 3}), y = random({4, 5});
    return training_case(nn::Bilinear(3, 5, 2).ptr(),
                         [=](nn::BilinearImpl& of) { return of.forward(x, y); });
  });
}

TEST(TouchLayers, Conv1d) {
  expect_layer_parity<nn::Conv1d>([] { return nn::Conv1d(3, 4, 3); }, {2, 3, 9});
}

TEST(TouchLayers, Conv2d) {
  expect_layer_parity<nn::Conv2d>(
      [] { return nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1).groups(2)); }, {2, 4, 5, 5});
}

TEST(TouchLayers, Conv2dWithChannelsLastWeights) {
  expect_layer_parity<nn::Conv2d>(
      [] {
        nn::Conv2d layer(4, 6, 3);
        layer->weight.set_data(layer->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
        return layer;
      },
      {2, 4, 5, 5});
}

TEST(TouchLayers, ConvTranspose2d) {
  expect_layer_parity<nn::ConvTranspose2d>([] { return nn::ConvTranspose2d(3, 2, 3); },
                                           {2, 3, 4, 4});
}

TEST(TouchLayers, BatchNorm) {
  expect_parity([] {
    const at::Tensor x = random({4, 3, 5, 5});
    return case_of(nn::BatchNorm2d(3).ptr(), [x](nn::BatchNorm2dImpl& of, const Trial&) -> Tensors {
      at::Tensor output = of.forward(x);
      loss_of(output).backward();
      return {output, of.running_mean, of.running_var};
    });
  });
}

TEST(TouchLayers, BatchNormInEvaluation) {
  expect_parity([] {
    const at::Tensor x = random({4, 3, 5, 5});
    nn::BatchNorm2d layer(3);
    layer->eval();
    return training_case(layer.ptr(), [x](nn::BatchNorm2dImpl& of) { return of.forward(x); });
  });
}

TEST(TouchLayers, LayerNorm) {
  expect_layer_parity<nn::LayerNorm>([] { return nn::LayerNorm(nn::LayerNormOptions({6})); },
                                     {4, 6});
}

TEST(TouchLayers, GroupNorm) {
  expect_layer_parity<nn::GroupNorm>([] { return nn::GroupNorm(2, 4); }, {3, 4, 5});
}

TEST(TouchLayers, PReLU) {
  expect_layer_parity<nn::PReLU>([] { return nn::PReLU(nn::PReLUOptions().num_parameters(3)); },
                                 {4, 3, 2});
}

TEST(TouchLayers, Embedding) {
  for (bool is_sparse : {false, true}) {
    expect_parity([is_sparse] {
      const at::Tensor x = random_indices(7, {2, 9});
      return training_case(nn::Embedding(nn::EmbeddingOptions(7, 3).sparse(is_sparse)).ptr(),
                           [x](nn::EmbeddingImpl& of) { return of.forward(x); });
    });
  }
}

TEST(TouchLayers, EmbeddingBag) {
  for (bool is_sparse : {false, true}) {
    expect_parity([is_sparse] {
      const at::Tensor x = random_indices(7, {9});
      const at::Tensor offsets = at::tensor({0, 4, 6}, at::kLong);
      const auto options = nn::EmbeddingBagOptions(7, 3).mode(torch::kSum).sparse(is_sparse);
      return training_case(nn::EmbeddingBag(options).ptr(),
                           [=](nn::EmbeddingBagImpl& of) { return of.forward(x, offsets); });
    });
  }
}

TEST(TouchLayers, MultiheadAttention) {
  expect_parity([] {
    const at::Tensor x = random({5, 2, 8});
    return training_case(nn::MultiheadAttention(8, 2).ptr(), [x](nn::MultiheadAttentionImpl& of) {
      return std::get<0>(of.forward(x, x, x));
    });
  });
}

TEST(TouchLayers, MultiheadAttentionWithSeparateProjections) {
  expect_parity([] {
    const at::Tensor q = random({5, 2, 8}), k = random({3, 2, 4}), v = random({3, 2, 4});
    const auto options = nn::MultiheadAttentionOptions(8, 2).kdim(4).vdim(4).add_bias_kv(true);
    return training_case(
        nn::MultiheadAttention(options).ptr(),
        [=](nn::MultiheadAttentionImpl& of) { return std::get<0>(of.forward(q, k, v)); });
  });
}

TEST(TouchLayers, TransformerEncoder) {
  expect_parity([] {
    const at::Tensor x = random({5, 2, 8});
    nn::TransformerEncoderLayer layer(
        nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0));
    return training_case(nn::TransformerEncoder(layer, 2).ptr(),
                         [x](nn::TransformerEncoderImpl& of) { return of.forward(x); });
  });
}

TEST(TouchLayers, FusedTransformerEncoderLayer) {
  const Traits traits{.units_at_once = 12};
  expect_parity(
      [] {
        const at::Tensor x = random({2, 5, 8});
        nn::TransformerEncoderLayer layer(
            nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0));
        return case_of(
            layer.ptr(), [x](nn::TransformerEncoderLayerImpl& of, const Trial&) -> Tensors {
              torch::NoGradGuard no_grad;
              auto& attention = *of.self_attn;
              return {at::_transformer_encoder_layer_fwd(
                  x, 8, 2, attention.in_proj_weight, attention.in_proj_bias,
                  attention.out_proj->weight, attention.out_proj->bias, true, false, 1e-5,
                  of.norm1->weight, of.norm1->bias, of.norm2->weight, of.norm2->bias,
                  of.linear1->weight, of.linear1->bias, of.linear2->weight, of.linear2->bias)};
            });
      },
      traits);
}

TEST(TouchLayers, OneLayerUsedTwice) {
  expect_parity([] {
    const at::Tensor x = random({2, 4});
    return training_case(nn::Linear(4, 4).ptr(),
                         [x](nn::LinearImpl& of) { return of.forward(of.forward(x).tanh()); });
  });
}

TEST(TouchLayers, OperatorsOverSeveralWeights) {
  const Traits traits{.units_at_once = 4};
  const auto expect = [&](const std::function<at::Tensor(TwoLayersImpl&, const at::Tensor&)>& f) {
    expect_parity(
        [&] {
          const at::Tensor x = random({2, 4});
          return training_case(two_layers(), [x, f](TwoLayersImpl& of) { return f(of, x); });
        },
        traits);
  };
  expect([](TwoLayersImpl& of, const at::Tensor&) {
    return at::cat(
        {of.first->weight.flatten(), of.first->bias, of.second->weight.flatten(), of.second->bias});
  });
  expect([](TwoLayersImpl& of, const at::Tensor& x) {
    return at::stack({of.first->weight.select(0, 0), of.first->weight.select(0, 1)}) + x;
  });
  expect([](TwoLayersImpl& of, const at::Tensor& x) {
    return at::einsum("bi,oi,po->bp", {x, of.first->weight, of.second->weight});
  });
  expect([](TwoLayersImpl& of, const at::Tensor&) {
    return at::stack(at::_foreach_mul({of.first->bias, of.first->bias}, 3.0));
  });
}

}  // namespace
}  // namespace fsdp::test
