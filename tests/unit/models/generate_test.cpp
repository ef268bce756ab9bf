// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "fsdp/base/error.hpp"
#include "fsdp/models/generate.hpp"
#include "fsdp/models/gpt.hpp"

namespace fsdp::models {
namespace {

class GenerateTest : public ::testing::Test {
 protected:
  GenerateTest() {
    torch::manual_seed(1);
    model_ = GPT(preset("tiny"));
    torch::NoGradGuard no_grad;
    for (auto& parameter : model_->parameters()) {
      parameter.add_(torch::randn_like(parameter), 0.3);
    }
  }
  GPT model_{nullptr};
};

TEST_F(GenerateTest, TheSeedDecidesTheText) {
  const GenerateOptions options{.tokens = 20, .temperature = 1, .top_k = 0, .seed = 3};
  const auto text = generate(*model_, {1, 2}, options);
  EXPECT_EQ(text.size(), 20u);
  EXPECT_EQ(text, generate(*model_, {1, 2}, options));
  GenerateOptions other = options;
  other.seed = 4;
  EXPECT_NE(text, generate(*model_, {1, 2}, other));
}

TEST_F(GenerateTest, ZeroTemperatureTakesTheLikeliest) {
  const auto text = generate(*model_, {7}, {.tokens = 1, .temperature = 0});
  const auto logits = model_->forward(torch::tensor({{7}}, torch::kInt64));
  EXPECT_EQ(text[0], logits[0][0].argmax().item<std::int64_t>());
  EXPECT_EQ(text, generate(*model_, {7}, {.tokens = 1, .temperature = 1, .top_k = 1}));
}

TEST_F(GenerateTest, GoesOnBeyondTheContext) {
  EXPECT_EQ(generate(*model_, std::vector<std::int64_t>(40, 9), {.tokens = 40}).size(), 40u);
}

TEST_F(GenerateTest, LeavesTheModeAsItWasAndNoGraph) {
  model_->train();
  generate(*model_, {1}, {.tokens = 2});
  EXPECT_TRUE(model_->is_training());
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST_F(GenerateTest, RefusesBadPrompts) {
  EXPECT_THROW(generate(*model_, {}), Error);
  EXPECT_THROW(generate(*model_, {256}), Error);
  EXPECT_THROW(generate(*model_, {-1}), Error);
}

}  // namespace
}  // namespace fsdp::models
