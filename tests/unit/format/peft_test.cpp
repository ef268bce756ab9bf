// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/peft.hpp"

#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"

namespace fsdp::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_adapter_config("adapter_config.json", text);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(PeftTest, WhatIsWrittenReadsBack) {
  const LoRAConfig lora{.rank = 4,
                        .alpha = 12,
                        .targets = {"q_proj", "v_proj"},
                        .is_transposed = true,
                        .base = "smollm2"};
  const LoRAConfig again = parse_adapter_config("a", to_json(lora));
  EXPECT_EQ(again.rank, 4);
  EXPECT_EQ(again.scale(), 3);
  EXPECT_THAT(again.targets, ElementsAre("q_proj", "v_proj"));
  EXPECT_TRUE(again.is_transposed);
  EXPECT_EQ(again.base, "smollm2");
}

TEST(PeftTest, ReadsWhatPeftWrites) {
  // As peft 0.17 does, and with what 0.21 added.
  const LoRAConfig lora = parse_adapter_config("a", R"({
    "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "m", "bias": "none",
    "corda_config": null, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
    "inference_mode": true, "init_lora_weights": true, "layer_replication": null,
    "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 32,
    "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
    "qalora_group_size": 16, "r": 16, "rank_pattern": {}, "revision": null,
    "target_modules": ["v_proj", "q_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
    "trainable_token_indices": null, "use_dora": false, "use_qalora": false, "use_rslora": false,
    "kasa_config": null, "peft_version": "0.21.2", "use_bdlora": null, "velora_config": null})");
  EXPECT_EQ(lora.rank, 16);
  EXPECT_EQ(lora.scale(), 2);
  EXPECT_EQ(lora.dropout, 0.05);
}

TEST(PeftTest, EveryVariantIsRefusedByName) {
  EXPECT_THAT(refusal(R"({"r":0,"target_modules":"all-linear","use_dora":true,"use_rslora":true,)"
                      R"("modules_to_save":["lm_head"],"rank_pattern":{"a":3},"peft_type":"IA3",)"
                      R"("bias":"all","wings":2,"init_lora_weights":"pissa"})"),
              AllOf(HasSubstr("r is 0"), HasSubstr("all-linear"), HasSubstr("use_dora is true"),
                    HasSubstr("use_rslora is true"), HasSubstr("modules_to_save"),
                    HasSubstr("rank_pattern"), HasSubstr("\"IA3\""), HasSubstr("bias is \"all\""),
                    HasSubstr("wings is not known"), HasSubstr("\"pissa\"")));
}

}  // namespace
}  // namespace fsdp::format
