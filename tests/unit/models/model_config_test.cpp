// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/model_config.hpp"

#include <gmock/gmock.h>

#include <type_traits>

#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"

namespace fsdp::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const std::string& text) {
  try {
    read_config("config.json", text);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

/// `fields` beside those that a Llama needs.
std::string llama(const std::string& fields) {
  return R"({"model_type":"llama","vocab_size":256,"hidden_size":32,"intermediate_size":88,)"
         R"("num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":64)" +
         fields + "}";
}

LlamaConfig read_llama(const std::string& fields) {
  return std::get<LlamaConfig>(read_config("config.json", llama(fields)));
}

std::string gpt(const std::string& fields) {
  return R"({"model_type":"gpt2","vocab_size":256,"n_embd":32,"n_layer":2,"n_head":4,)"
         R"("n_positions":64)" +
         fields + "}";
}

// As published: HuggingFaceTB/SmolLM2-135M and openai-community/gpt2.
constexpr const char* kSmolLM2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
  "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
  "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152})";
constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "vocab_size": 50257,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})";

TEST(ModelConfigTest, ReadsPublishedFiles) {
  const ModelConfig small = read_config("config.json", kSmolLM2);
  EXPECT_EQ(parameter_count(small), 134'515'008);
  EXPECT_EQ(std::get<LlamaConfig>(small).rope.theta, 100000);
  EXPECT_TRUE(sizes(small).tied);
  EXPECT_EQ(special_tokens(small).ends, std::vector<std::int64_t>{0});
  const ModelConfig gpt2 = read_config("config.json", kGpt2);
  EXPECT_EQ(parameter_count(gpt2), 124'439'808);
  EXPECT_EQ(sizes(gpt2).dropout, 0.1);
  EXPECT_EQ(special_tokens(gpt2).begin, 50256);
}

TEST(ModelConfigTest, WhatIsWrittenReadsBackAsItself) {
  LlamaConfig config{.vocab = 100,
                     .width = 48,
                     .inner = 99,
                     .layers = 3,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_width = 8,
                     .context = 77,
                     .norm_eps = 3e-6,
                     .rope = {.theta = 12345,
                              .scaling = RopeScaling::kLlama3,
                              .factor = 8,
                              .low_freq_factor = 2,
                              .high_freq_factor = 5,
                              .original_context = 33},
                     .attention_bias = true,
                     .mlp_bias = true,
                     .tied = true,
                     .dropout = 0.25,
                     .special = {.begin = 1, .ends = {2, 3}, .padding = 4}};
  const std::string text = config_json(config, "float32");
  EXPECT_EQ(config_json(read_config("config.json", text), "float32"), text);
  const auto again = std::get<LlamaConfig>(read_config("config.json", text));
  EXPECT_EQ(again.head_width, 8);
  EXPECT_EQ(again.rope.original_context, 33);
  EXPECT_EQ(again.special, config.special);
  GPTConfig other{.tied = false, .dropout = 0.5, .inner = 100, .norm_eps = 1e-6};
  const std::string gpt_text = config_json(other, "float64");
  EXPECT_EQ(config_json(read_config("config.json", gpt_text), "float64"), gpt_text);
  EXPECT_EQ(std::get<GPTConfig>(read_config("config.json", gpt_text)).inner, 100);
}

// As published: Qwen/Qwen2.5-0.5B-Instruct, Qwen/Qwen3-0.6B and mistralai/Mistral-7B-v0.1.
constexpr const char* kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";
constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kMistral = R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})";

TEST(ModelConfigTest, ReadsPublishedFilesOfLlamasRelatives) {
  const ModelConfig qwen2 = read_config("config.json", kQwen2);
  EXPECT_STREQ(model_type(qwen2), "qwen2");
  EXPECT_EQ(parameter_count(qwen2), 494'032'768);
  EXPECT_EQ(std::get<Qwen2Config>(qwen2).window, 0);
  const ModelConfig qwen3 = read_config("config.json", kQwen3);
  EXPECT_EQ(parameter_count(qwen3), 596'049'920);
  const ModelConfig mistral = read_config("config.json", kMistral);
  EXPECT_EQ(parameter_count(mistral), 7'241'732'096);
  EXPECT_EQ(std::get<MistralConfig>(mistral).window, 4096);
  EXPECT_EQ(parameter_count(model_preset("qwen2.5-0.5b")), parameter_count(qwen2));
  EXPECT_EQ(parameter_count(model_preset("qwen3-0.6b")), parameter_count(qwen3));
  for (const ModelConfig& config : {qwen2, qwen3, mistral}) {
    const std::string text = config_json(config, "bfloat16");
    EXPECT_EQ(config_json(read_config("config.json", text), "bfloat16"), text);
  }
}

/// `fields` beside those that a relative needs.
std::string relative(const std::string& type, const std::string& fields) {
  return R"({"model_type":")" + type +
         R"(","vocab_size":256,"hidden_size":32,"intermediate_size":88,"num_hidden_layers":3,)"
         R"("num_attention_heads":4,"max_position_embeddings":64)" +
         (fields.find("num_key_value_heads") == std::string::npos ? R"(,"num_key_value_heads":2)"
                                                                  : "") +
         fields + "}";
}

TEST(ModelConfigTest, WindowsAreWhatTransformersMakesOfTheFields) {
  const auto windows = [](const std::string& type, const std::string& fields) {
    const ModelConfig config = read_config("config.json", relative(type, fields));
    std::vector<std::int64_t> all;
    std::visit(
        [&](const auto& known) {
          if constexpr (std::is_base_of_v<LlamaConfig, std::remove_cvref_t<decltype(known)>>) {
            for (std::int64_t block = 0; block < 3; ++block) {
              all.push_back(known.window_of(block));
            }
          }
        },
        config);
    return all;
  };
  EXPECT_THAT(windows("mistral", ""), ElementsAre(4096, 4096, 4096)) << "its default";
  EXPECT_THAT(windows("mistral", R"(,"sliding_window":null)"), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows("qwen2", R"(,"sliding_window":8)"), ElementsAre(0, 0, 0)) << "not in use";
  const std::string used = R"(,"use_sliding_window":true,"sliding_window":8,"max_window_layers":1)";
  EXPECT_THAT(windows("qwen2", used), ElementsAre(0, 8, 8));
  EXPECT_THAT(windows("qwen3", used + R"(,"layer_types":["full_attention","sliding_attention",)"
                                      R"("sliding_attention"])"),
              ElementsAre(0, 8, 8));
  EXPECT_THAT(refusal(relative("qwen3", R"(,"layer_types":["full_attention",)"
                                        R"("sliding_attention","full_attention"])")),
              HasSubstr("layer_types"));
  EXPECT_THAT(refusal(relative("qwen2", R"(,"attention_bias":false)")),
              HasSubstr("attention_bias is false"));
  EXPECT_THAT(refusal(relative("mistral", R"(,"num_key_value_heads":null)")), HasSubstr("missing"));
}

TEST(ModelConfigTest, RopeIsReadAsBothVersionsOfTransformersWriteIt) {
  EXPECT_EQ(read_llama("").rope.theta, 10000);
  const RopeConfig four =
      read_llama(R"(,"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":32.0,)"
                 R"("low_freq_factor":1.0,"high_freq_factor":4.0,)"
                 R"("original_max_position_embeddings":8192})")
          .rope;
  const RopeConfig five =
      read_llama(R"(,"rope_parameters":{"rope_theta":500000.0,"rope_type":"llama3","factor":32.0,)"
                 R"("low_freq_factor":1.0,"high_freq_factor":4.0,)"
                 R"("original_max_position_embeddings":8192})")
          .rope;
  for (const RopeConfig& rope : {four, five}) {
    EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(rope.theta, 500000);
    EXPECT_EQ(rope.factor, 32);
    EXPECT_EQ(rope.original_context, 8192);
  }
  EXPECT_EQ(read_llama(R"(,"rope_scaling":{"type":"linear","factor":2.0})").rope.factor, 2);
}

TEST(ModelConfigTest, EveryUnknownFieldAndUnsupportedValueIsNamed) {
  EXPECT_THAT(
      refusal(llama(R"(,"hidden_act":"gelu","sliding_window":4096,"flux":1,"pretraining_tp":2,)"
                    R"("quantization_config":{"bits":4},"is_llama_config":false,)"
                    R"("rope_scaling":{"rope_type":"yarn","factor":4.0,"warp":9})")),
      AllOf(HasSubstr("hidden_act is \"gelu\""), HasSubstr("sliding_window is 4096"),
            HasSubstr("flux is not known"), HasSubstr("pretraining_tp is 2"),
            HasSubstr("quantization_config"), HasSubstr("is_llama_config is false"),
            HasSubstr("rope_scaling.rope_type is \"yarn\""),
            HasSubstr("rope_scaling.warp is not known")));
  EXPECT_THAT(
      refusal(gpt(R"(,"activation_function":"relu","scale_attn_weights":false,)"
                  R"("attn_pdrop":0.3,"add_cross_attention":true,"n_ctx":65,)"
                  R"("scale_attn_by_inverse_layer_idx":true,"rope_theta":1.0)")),
      AllOf(HasSubstr("activation_function is \"relu\""), HasSubstr("scale_attn_weights is false"),
            HasSubstr("attn_pdrop is 0.3"), HasSubstr("add_cross_attention is true"),
            HasSubstr("n_ctx is 65"), HasSubstr("scale_attn_by_inverse_layer_idx is true"),
            HasSubstr("rope_theta is not known")));
  for (const char* type : {"dynamic", "yarn", "longrope"}) {
    EXPECT_THAT(
        refusal(llama(std::string(R"(,"rope_scaling":{"factor":2.0,"type":")") + type + "\"}")),
        HasSubstr(type));
  }
  EXPECT_THAT(refusal(llama(R"(,"architectures":["LlamaForSequenceClassification"])")),
              HasSubstr("LlamaForSequenceClassification"));
}

TEST(ModelConfigTest, NeutralValuesAndBookkeepingPass) {
  EXPECT_EQ(refusal(llama(R"(,"sliding_window":null,"layer_types":[],"is_decoder":null,)"
                          R"("_name_or_path":"x","output_attentions":false,"head_dim":8,)"
                          R"("temperature":0.6,"max_length":20,"use_bfloat16":false,)"
                          R"("rope_parameters":{"rope_type":"default","rope_theta":1e4})")),
            "accepted");
  EXPECT_EQ(refusal(gpt(R"(,"n_inner":null,"reorder_and_upcast_attn":false)")), "accepted");
}

TEST(ModelConfigTest, WrongTypesMissingSizesAndOtherModelsAreNamed) {
  EXPECT_THAT(refusal(llama(R"(,"rms_norm_eps":"small","mlp_bias":1,"num_key_value_heads":2.5)")),
              AllOf(HasSubstr("rms_norm_eps is \"small\", must be a number"),
                    HasSubstr("mlp_bias is 1, must be true or false"),
                    HasSubstr("num_key_value_heads is 2.5, must be an integer")));
  EXPECT_THAT(refusal(R"({"model_type":"llama"})"), HasSubstr("hidden_size is missing"));
  EXPECT_THAT(refusal(R"({"model_type":"mamba"})"),
              AllOf(HasSubstr("'mamba'"), HasSubstr("gpt2, llama, mistral, qwen2, qwen3"),
                    HasSubstr("fully_shard")));
  EXPECT_THAT(refusal("{}"), HasSubstr("model_type"));
  EXPECT_THAT(refusal("[1"), Not(HasSubstr("accepted")));
  EXPECT_THAT(refusal(llama(R"(,"num_key_value_heads":3)")),
              HasSubstr("3 key and value heads do not divide 4 heads"));
}

TEST(ModelConfigTest, StoredNamesBecomeOurs) {
  const ModelConfig llama_config = LlamaConfig{.tied = true}, gpt_config = GPTConfig{.tied = false};
  EXPECT_EQ(parameter_of(llama_config, "model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(parameter_of(llama_config, "lm_head.weight"), std::nullopt);
  EXPECT_EQ(parameter_of(LlamaConfig{.tied = false}, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(parameter_of(llama_config, "model.layers.0.self_attn.rotary_emb.inv_freq"),
            std::nullopt);
  EXPECT_EQ(parameter_of(gpt_config, "transformer.h.0.ln_1.bias"), "h.0.ln_1.bias");
  EXPECT_EQ(parameter_of(gpt_config, "h.0.attn.c_attn.bias"), "h.0.attn.c_attn.bias");
  EXPECT_EQ(parameter_of(gpt_config, "h.0.attn.bias"), std::nullopt);
  EXPECT_EQ(parameter_of(gpt_config, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(published_name(gpt_config, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(published_name(gpt_config, "wte.weight"), "transformer.wte.weight");
}

TEST(ModelConfigTest, SizesWhoseProductOverflowsAreRefused) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const GPTConfig gpt{.width = kMost, .layers = kMost, .heads = 1};
  EXPECT_THAT(test::error_of([&] { validate(gpt); }), HasSubstr("parameters, must be at most"));
  LlamaConfig rotary;
  rotary.width = rotary.layers = rotary.inner = kMost;
  EXPECT_THAT(test::error_of([&] { validate(rotary); }), HasSubstr("parameters, must be at most"));
}

}  // namespace
}  // namespace fsdp::models
