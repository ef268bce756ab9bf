// SPDX-License-Identifier: Apache-2.0
/// Weights that are not safetensors as they are read: GGUF files, and weights with adapters added.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "archive/file.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/peft.hpp"
#include "support/gguf_writer.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> counting(std::int64_t count, float first = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<float> read(const WeightSource& source, const std::string& name) {
  const Tensor& tensor = *source.find(name);
  std::vector<float> values(static_cast<std::size_t>(numel(tensor.shape)));
  source.read(tensor, 0, tensor.bytes, values.data());
  return values;
}

/// Two heads of width 4 and one key head over 8 features; no head of its own.
GgufWriter llama_file() {
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.text("general.name", "tiny");
  writer.integer("llama.block_count", 1);
  writer.integer("llama.context_length", 64);
  writer.integer("llama.embedding_length", 8);
  writer.integer("llama.feed_forward_length", 4);
  writer.integer("llama.attention.head_count", 2);
  writer.integer("llama.attention.head_count_kv", 1);
  writer.real("llama.rope.freq_base", 5000);
  writer.real("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.integer("llama.rope.dimension_count", 4);
  writer.integer("llama.vocab_size", 4);
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", "smollm");
  writer.texts("tokenizer.ggml.tokens", {"<|end|>", "a", "b", "ab"});
  writer.integers("tokenizer.ggml.token_type", {3, 1, 1, 1});
  writer.texts("tokenizer.ggml.merges", {"a b"});
  writer.integer("tokenizer.ggml.eos_token_id", 0);
  writer.floats("token_embd.weight", {4, 8}, counting(32));
  writer.floats("output_norm.weight", {8}, counting(8));
  writer.floats("blk.0.attn_norm.weight", {8}, counting(8));
  writer.floats("blk.0.attn_q.weight", {8, 8}, counting(64));
  writer.floats("blk.0.attn_k.weight", {4, 8}, counting(32));
  writer.floats("blk.0.attn_v.weight", {4, 8}, counting(32));
  return writer;
}

class ImportedWeightsTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return directory_.path(name); }
  std::string refusal(const GgufWriter& writer) const {
    directory_.write("bad.gguf", writer.bytes());
    try {
      WeightSource(at("bad.gguf"));
    } catch (const Error& error) {
      return error.text();
    }
    return "accepted";
  }
  test::TemporaryDirectory directory_;
};

TEST_F(ImportedWeightsTest, GgufTensorsHaveHuggingFacesNamesAndOrder) {
  directory_.write("m.gguf", llama_file().bytes());
  const WeightSource source(at("m.gguf"));
  EXPECT_EQ(source.tensors().size(), 6u);
  EXPECT_EQ(read(source, "model.embed_tokens.weight"), counting(32));
  EXPECT_EQ(read(source, "model.layers.0.self_attn.v_proj.weight"), counting(32));
  // Rows of a head of 4 lie in the file as (0, 2, 1, 3) of Hugging Face's order.
  const auto rows = [](const std::vector<float>& values) {
    std::vector<float> firsts;
    for (std::size_t i = 0; i < values.size(); i += 8) {
      firsts.push_back(values[i] / 8);
    }
    return firsts;
  };
  EXPECT_THAT(rows(read(source, "model.layers.0.self_attn.q_proj.weight")),
              ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(rows(read(source, "model.layers.0.self_attn.k_proj.weight")),
              ElementsAre(0, 2, 1, 3));
}

TEST_F(ImportedWeightsTest, GgufPartsAreThoseOfTheWhole) {
  GgufWriter writer = llama_file();
  std::string blocks;
  for (int i = 0; i < 4; ++i) {
    blocks += std::string("\x00\x3c", 2) + std::string(32, static_cast<char>(i + 1));
  }
  writer.tensor("blk.0.ffn_up.weight", {4, 32}, 8, blocks);
  directory_.write("m.gguf", writer.bytes());
  const WeightSource source(at("m.gguf"));
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"}) {
    const Tensor& tensor = *source.find(name);
    const std::vector<float> whole = read(source, name);
    for (std::int64_t begin = 0; begin < std::ssize(whole); begin += 5) {
      for (const std::int64_t count : {0, 1, 13}) {
        const std::int64_t part = std::min<std::int64_t>(count, std::ssize(whole) - begin);
        std::vector<float> values(static_cast<std::size_t>(part));
        source.read(tensor, 4 * begin, 4 * part, values.data());
        EXPECT_TRUE(std::equal(values.begin(), values.end(), whole.begin() + begin)) << begin;
      }
    }
  }
  float value = 0;
  EXPECT_THROW(source.read(*source.find("model.norm.weight"), 2, 4, &value), Error);
  EXPECT_THROW(source.read(*source.find("model.norm.weight"), 32, 4, &value), Error);
}

TEST_F(ImportedWeightsTest, Fault149_APartOfASplitGgufSaysHowToJoinThem) {
  GgufWriter first = llama_file(), second;
  first.integer("split.no", 0);
  first.integer("split.count", 3);
  second.integer("split.no", 1);
  second.integer("split.count", 3);
  EXPECT_THAT(refusal(first), HasSubstr("is part 1 of 3 of a model that was split: join them"));
  EXPECT_THAT(refusal(second), HasSubstr("is part 2 of 3"));
}

TEST_F(ImportedWeightsTest, GgufMetadataBecomeDocuments) {
  directory_.write("m.gguf", llama_file().bytes());
  write_weights(WeightSource(at("m.gguf")), at("hf"));
  const auto parsed = [&](const char* name) {
    return nlohmann::json::parse(detail::read_file(at("hf/") + name, 1 << 20));
  };
  const auto config = parsed("config.json");
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_EQ(config["rope_theta"], 5000);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["eos_token_id"], 0);
  EXPECT_TRUE(config["bos_token_id"].is_null());
  EXPECT_EQ(parsed("vocab.json")["ab"], 3);
  EXPECT_EQ(detail::read_file(at("hf/merges.txt"), 100), "#version: 0.2\na b\n");
  const auto tokenizer = parsed("tokenizer.json");
  EXPECT_EQ(tokenizer["model"]["merges"][0], "a b");
  EXPECT_EQ(tokenizer["added_tokens"].size(), 1u);
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<|end|>");
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Digits");
  EXPECT_EQ(parsed("tokenizer_config.json")["eos_token"], "<|end|>");
  EXPECT_EQ(read(WeightSource(at("hf")), "model.norm.weight"), counting(8));
}

TEST_F(ImportedWeightsTest, GgufThatIsNoPlainLlamaIsRefusedByName) {
  GgufWriter scaled = llama_file();
  scaled.text("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(refusal(scaled), HasSubstr("llama.rope.scaling.type"));
  GgufWriter expert = llama_file();
  expert.floats("blk.0.ffn_gate_inp.weight", {8}, counting(8));
  EXPECT_THAT(refusal(expert), HasSubstr("'blk.0.ffn_gate_inp.weight'"));
  GgufWriter other;
  other.text("general.architecture", "gemma3");
  EXPECT_THAT(refusal(other), HasSubstr("'gemma3'"));
  GgufWriter empty;
  empty.text("general.architecture", "llama");
  EXPECT_THAT(refusal(empty), HasSubstr("'llama.attention.head_count' is missing"));
  GgufWriter partial = llama_file();
  partial.integer("llama.attention.key_length", 2);
  EXPECT_THAT(refusal(partial), HasSubstr("llama.attention.key_length is 2"));
}

// ---- adapters --------------------------------------------------------------------------------

/// A safetensors file of float32 tensors.
std::string safetensors(
    const std::vector<std::pair<std::string, std::pair<std::string, std::vector<float>>>>& all) {
  std::string json = "{", data;
  for (const auto& [name, tensor] : all) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.second.data()), 4 * tensor.second.size());
    json += (json.size() > 1 ? "," : "") + ("\"" + name) + R"(":{"dtype":"F32","shape":)" +
            tensor.first + ",\"data_offsets\":[" + std::to_string(begin) + "," +
            std::to_string(data.size()) + "]}";
  }
  json += "}";
  std::string head(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(head.data(), &length, sizeof length);
  return head + json + data;
}

class AdaptedWeightsTest : public ImportedWeightsTest {
 protected:
  AdaptedWeightsTest() {
    std::filesystem::create_directories(at("base"));
    std::filesystem::create_directories(at("adapter"));
    directory_.write("base/model.safetensors",
                     safetensors({{"h.q.weight", {"[2,3]", {1, 2, 3, 4, 5, 6}}},
                                  {"h.v.weight", {"[2,3]", {1, 1, 1, 1, 1, 1}}}}));
  }
  void write_adapter(bool is_transposed, const std::string& prefix, const std::string& a_shape,
                     const std::string& b_shape) const {
    directory_.write(
        "adapter/adapter_config.json",
        format::to_json({.rank = 1, .alpha = 2, .targets = {"q"}, .is_transposed = is_transposed}));
    const std::vector<float> three = {1, 10, 100}, two = {1, 2};
    directory_.write(
        "adapter/adapter_model.safetensors",
        safetensors({{prefix + "h.q.lora_A.weight", {a_shape, is_transposed ? two : three}},
                     {prefix + "h.q.lora_B.weight", {b_shape, is_transposed ? three : two}}}));
  }
  std::string refusal() const {
    try {
      WeightSource::with_adapter(at("base"), at("adapter"));
    } catch (const Error& error) {
      return error.text();
    }
    return "accepted";
  }
};

TEST_F(AdaptedWeightsTest, AddsScaledBTimesAToTheWeightAndToNoOther) {
  write_adapter(false, "base_model.model.", "[1,3]", "[2,1]");
  const WeightSource source = WeightSource::with_adapter(at("base"), at("adapter"));
  EXPECT_THAT(read(source, "h.q.weight"), ElementsAre(3, 22, 203, 8, 45, 406));
  EXPECT_THAT(read(source, "h.v.weight"), ElementsAre(1, 1, 1, 1, 1, 1));
  float part[2];
  source.read(*source.find("h.q.weight"), 8, 8, part);
  EXPECT_THAT(part, ElementsAre(203, 8));
  write_weights(source, at("merged"));
  EXPECT_THAT(read(WeightSource(at("merged")), "h.q.weight"), ElementsAre(3, 22, 203, 8, 45, 406));
}

TEST_F(AdaptedWeightsTest, TransposedWeightsGetTheTransposedProduct) {
  // A [1, 2] and B [3, 1] beside a weight of [in, out] = [2, 3].
  write_adapter(true, "base_model.model.transformer.", "[1,2]", "[3,1]");
  const WeightSource source = WeightSource::with_adapter(at("base"), at("adapter"));
  EXPECT_THAT(read(source, "h.q.weight"), ElementsAre(3, 22, 203, 8, 45, 406));
}

TEST_F(AdaptedWeightsTest, WhatFitsNoWeightIsNamed) {
  write_adapter(false, "base_model.model.other.", "[1,3]", "[2,1]");
  EXPECT_THAT(refusal(), HasSubstr("adapts 'other.h.q'"));
  write_adapter(true, "base_model.model.", "[1,2]", "[3,1]");
  EXPECT_EQ(refusal(), "accepted");
  write_adapter(false, "base_model.model.", "[3,1]", "[2,1]");
  EXPECT_THAT(refusal(), HasSubstr("do not fit 'h.q.weight', F32 [2, 3]"));
  write_adapter(false, "model.", "[1,3]", "[2,1]");
  EXPECT_THAT(refusal(), HasSubstr("no LoRA factor"));
  std::filesystem::remove(at("adapter/adapter_config.json"));
  EXPECT_THAT(refusal(), HasSubstr("has no adapter_config.json"));
}

}  // namespace
}  // namespace fsdp::archive
