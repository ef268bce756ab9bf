// SPDX-License-Identifier: Apache-2.0
/// Each row of the table of architectures keeps what the rest of the library takes for granted.
#include "models/architecture.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "fsdp/models/language_model.hpp"
#include "fsdp/models/lora.hpp"

namespace fsdp::models {
namespace {

using detail::Architecture;
using detail::architectures;

class ArchitectureTest : public ::testing::TestWithParam<const Architecture*> {
 protected:
  /// The smallest of its presets.
  ModelConfig smallest() const {
    const auto& presets = GetParam()->presets();
    return std::min_element(presets.begin(), presets.end(),
                            [](const auto& left, const auto& right) {
                              return parameter_count(left.config) < parameter_count(right.config);
                            })
        ->config;
  }
};

TEST_P(ArchitectureTest, StandsAtThePlaceOfItsConfiguration) {
  for (const auto& preset : GetParam()->presets()) {
    EXPECT_EQ(&detail::architecture_of(preset.config), GetParam()) << preset.name;
    EXPECT_STREQ(model_type(preset.config), GetParam()->model_type) << preset.name;
  }
}

TEST_P(ArchitectureTest, ReadsWhatItWrites) {
  for (const auto& preset : GetParam()->presets()) {
    const std::string text = config_json(preset.config, "float32");
    EXPECT_EQ(config_json(read_config("config.json", text), "float32"), text) << preset.name;
  }
}

TEST_P(ArchitectureTest, BuildsTheParametersThatItCounts) {
  const ModelConfig config = smallest();
  const auto model = make_model(config);
  std::int64_t count = 0;
  for (const auto& parameter : model->named_parameters()) {
    count += parameter.value().numel();
    EXPECT_EQ(parameter_of(config, published_name(config, parameter.key())), parameter.key());
  }
  EXPECT_EQ(count, parameter_count(config));
  EXPECT_EQ(model_type(model->model_config()), GetParam()->model_type);
}

TEST_P(ArchitectureTest, HasTheProjectionsAndTablesThatItNames) {
  const ModelConfig config = smallest();
  const auto model = make_model(config);
  const auto parameters = model->named_parameters();
  for (const std::string& table : token_tables(config)) {
    ASSERT_EQ(table.front(), '*');
    const bool is_there = std::any_of(
        parameters.begin(), parameters.end(),
        [&](const auto& parameter) { return parameter.key().ends_with(table.substr(1)); });
    EXPECT_TRUE(is_there) << table;
  }
  EXPECT_GT(add_adapters(*model, {.rank = 1, .targets = default_adapter_targets(config)}), 0);
}

TEST_P(ArchitectureTest, IsValidInAnotherSize) {
  const ModelSizes now = sizes(smallest());
  const ModelConfig larger = resized(smallest(), 2 * now.width, 2 * now.heads);
  EXPECT_NO_THROW(validate(larger));
  EXPECT_EQ(sizes(larger).width, 2 * now.width);
  EXPECT_EQ(sizes(larger).heads, 2 * now.heads);
  EXPECT_EQ(config_json(resized(smallest(), {}, {}), "float32"),
            config_json(smallest(), "float32"));
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest,
                         ::testing::ValuesIn(architectures().begin(), architectures().end()),
                         [](const auto& row) { return std::string(row.param->model_type); });

TEST(ArchitecturesTest, HaveNamesOfTheirOwn) {
  std::set<std::string> types, presets;
  for (const Architecture* each : architectures()) {
    EXPECT_TRUE(types.insert(each->model_type).second) << each->model_type;
    for (const auto& preset : each->presets()) {
      EXPECT_TRUE(presets.insert(preset.name).second) << preset.name;
    }
  }
}

}  // namespace
}  // namespace fsdp::models
