// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "fsdp/base/error.hpp"

namespace fsdp::models {
namespace {

GPT make(bool tied, std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  GPTConfig config = preset("tiny");
  config.tied = tied;
  return GPT(config);
}

std::int64_t numel(const GPT& model) {
  std::int64_t sum = 0;
  for (const auto& parameter : model->parameters()) {
    sum += parameter.numel();
  }
  return sum;
}

TEST(GPTTest, HasTheNamesAndShapesOfHuggingFace) {
  auto model = make(false);
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> found;
  for (const auto& item : model->named_parameters()) {
    found.emplace_back(item.key(), item.value().sizes().vec());
  }
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected = {
      {"wte.weight", {256, 32}}, {"wpe.weight", {32, 32}}};
  for (const std::string block : {"h.0.", "h.1."}) {
    expected.insert(expected.end(), {{block + "ln_1.weight", {32}},
                                     {block + "ln_1.bias", {32}},
                                     {block + "attn.c_attn.weight", {32, 96}},
                                     {block + "attn.c_attn.bias", {96}},
                                     {block + "attn.c_proj.weight", {32, 32}},
                                     {block + "attn.c_proj.bias", {32}},
                                     {block + "ln_2.weight", {32}},
                                     {block + "ln_2.bias", {32}},
                                     {block + "mlp.c_fc.weight", {32, 128}},
                                     {block + "mlp.c_fc.bias", {128}},
                                     {block + "mlp.c_proj.weight", {128, 32}},
                                     {block + "mlp.c_proj.bias", {32}}});
  }
  expected.insert(expected.end(),
                  {{"ln_f.weight", {32}}, {"ln_f.bias", {32}}, {"lm_head.weight", {256, 32}}});
  EXPECT_EQ(found, expected);
}

TEST(GPTTest, ParameterCountIsWhatTheConfigSays) {
  for (const bool tied : {true, false}) {
    auto model = make(tied);
    EXPECT_EQ(numel(model), parameter_count(model->config()));
  }
}

TEST(GPTTest, ATiedHeadHasNoParameterOfItsOwn) {
  auto model = make(true);
  EXPECT_FALSE(model->named_parameters().contains("lm_head.weight"));
  EXPECT_EQ(numel(make(false)) - numel(model), 256 * 32);
}

TEST(GPTTest, LossAtTheStartIsThatOfGuessing) {
  for (const bool tied : {true, false}) {
    auto model = make(tied);
    const auto tokens = torch::randint(256, {8, 33}, torch::kInt64);
    const double loss =
        model->forward(tokens.narrow(1, 0, 32), tokens.narrow(1, 1, 32)).item<double>();
    EXPECT_NEAR(loss, std::log(256.0), 0.1);
  }
}

TEST(GPTTest, LossIsTheCrossEntropyOfTheLogits) {
  auto model = make(true);
  const auto tokens = torch::randint(256, {3, 17}, torch::kInt64);
  const auto logits = model->forward(tokens.narrow(1, 0, 16));
  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 16, 256}));
  const auto picked =
      torch::log_softmax(logits, -1).gather(2, tokens.narrow(1, 1, 16).unsqueeze(2));
  EXPECT_NEAR(model->forward(tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16)).item<double>(),
              -picked.mean().item<double>(), 1e-5);
}

TEST(GPTTest, NoPositionSeesTheFuture) {
  auto model = make(true);
  torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(256, {1, 16}, torch::kInt64);
  auto changed = tokens.clone();
  changed[0][9] = (changed[0][9] + 1) % 256;
  const auto before = model->forward(tokens), after = model->forward(changed);
  EXPECT_TRUE(torch::equal(before.narrow(1, 0, 9), after.narrow(1, 0, 9)));
  EXPECT_FALSE(torch::allclose(before[0][9], after[0][9]));
  EXPECT_FALSE(torch::allclose(before[0][15], after[0][15]));
}

TEST(GPTTest, InitialWeightsFollowGPT2) {
  auto model = make(false);
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("wte.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("h.0.mlp.c_fc.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("lm_head.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("h.1.mlp.c_proj.weight"), 0.02 / std::sqrt(4.0), 5e-4);
  EXPECT_EQ(parameters["h.1.attn.c_attn.bias"].abs().sum().item<double>(), 0);
  EXPECT_EQ(parameters["ln_f.weight"].min().item<double>(), 1);
}

TEST(GPTTest, TheSeedDecidesTheWeights) {
  auto one = make(true, 5), same = make(true, 5), other = make(true, 6);
  EXPECT_TRUE(torch::equal(one->parameters()[0], same->parameters()[0]));
  EXPECT_FALSE(torch::equal(one->parameters()[0], other->parameters()[0]));
}

TEST(GPTTest, EveryParameterGetsAGradient) {
  for (const bool tied : {true, false}) {
    auto model = make(tied);
    const auto tokens = torch::randint(256, {2, 33}, torch::kInt64);
    model->forward(tokens.narrow(1, 0, 32), tokens.narrow(1, 1, 32)).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
    }
  }
}

TEST(GPTTest, DropoutActsInTrainingOnly) {
  torch::manual_seed(1);
  GPTConfig config = preset("tiny");
  config.dropout = 0.5;
  GPT model(config);
  const auto tokens = torch::randint(256, {1, 16}, torch::kInt64);
  EXPECT_FALSE(torch::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(GPTTest, WorksInDouble) {
  auto model = make(true);
  model->to(torch::kDouble);
  const auto tokens = torch::randint(256, {2, 17}, torch::kInt64);
  const auto loss = model->forward(tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16));
  EXPECT_EQ(loss.scalar_type(), torch::kDouble);
  loss.backward();
}

TEST(GPTTest, RefusesASequenceLongerThanTheContext) {
  auto model = make(true);
  EXPECT_THROW(model->forward(torch::zeros({1, 33}, torch::kInt64)), Error);
  EXPECT_THROW(model->forward(torch::zeros({33}, torch::kInt64)), Error);
  EXPECT_THROW(GPT(GPTConfig{.heads = 3}), Error);
}

}  // namespace
}  // namespace fsdp::models
