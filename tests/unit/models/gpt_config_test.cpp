// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt_config.hpp"

#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"

namespace fsdp::models {
namespace {

using ::testing::HasSubstr;

TEST(GPTConfigTest, PublishedSizes) {
  // Hugging Face's gpt2 family, tied weights counted once.
  EXPECT_EQ(parameter_count(preset("gpt2")), 124'439'808);
  EXPECT_EQ(parameter_count(preset("gpt2-medium")), 354'823'168);
  EXPECT_EQ(parameter_count(preset("gpt2-large")), 774'030'080);
  EXPECT_EQ(parameter_count(preset("gpt2-xl")), 1'557'611'200);
}

TEST(GPTConfigTest, PresetsAreValid) {
  for (const std::string& name : preset_names()) {
    EXPECT_NO_THROW(validate(preset(name))) << name;
  }
}

TEST(GPTConfigTest, AnUnknownPresetListsTheKnown) {
  try {
    preset("gpt5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.text(), HasSubstr("'gpt5'"));
    EXPECT_THAT(error.text(), HasSubstr("gpt2-medium"));
  }
}

TEST(GPTConfigTest, AllProblemsAreNamedAtOnce) {
  try {
    validate({.vocab = 0, .width = 130, .layers = -1, .heads = 4, .dropout = 1.5});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.text(), HasSubstr("vocab is 0"));
    EXPECT_THAT(error.text(), HasSubstr("layers is -1"));
    EXPECT_THAT(error.text(), HasSubstr("4 heads do not divide the width 130"));
    EXPECT_THAT(error.text(), HasSubstr("dropout is 1.5"));
  }
  EXPECT_THROW(validate({.heads = 0}), Error);
}

}  // namespace
}  // namespace fsdp::models
