// SPDX-License-Identifier: Apache-2.0
#include "archive/gguf_documents.hpp"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {

using format::GgufHeader;
using format::GgufValue;
using nlohmann::ordered_json;

namespace {

constexpr std::int64_t kControlToken = 3, kUserDefinedToken = 4;  // ggml's token types

template <class T>
const T* find(const GgufHeader& header, const std::string& key) {
  const auto found = header.metadata.find(key);
  return found == header.metadata.end() ? nullptr : std::get_if<T>(&found->second);
}

template <class T>
T need(const std::string& path, const GgufHeader& header, const std::string& key) {
  const T* found = find<T>(header, key);
  FSDP_CHECK(
      found != nullptr, ErrorCode::kCorrupt, "'", path, "': metadata '", key,
      header.metadata.contains(key) ? "' is of another type than a Llama model's" : "' is missing");
  return *found;
}

ordered_json token_or_null(const GgufHeader& header, const std::string& key) {
  const auto* token = find<std::int64_t>(header, "tokenizer.ggml." + key);
  return token == nullptr ? ordered_json() : ordered_json(*token);
}

ordered_json config_of(const std::string& path, const GgufHeader& header) {
  const auto integer = [&](const char* key) {
    return need<std::int64_t>(path, header, std::string("llama.") + key);
  };
  const auto real = [&](const char* key) {
    return need<double>(path, header, std::string("llama.") + key);
  };
  const auto* vocab = find<std::int64_t>(header, "llama.vocab_size");
  const auto* theta = find<double>(header, "llama.rope.freq_base");
  const auto has_head =
      std::any_of(header.tensors.begin(), header.tensors.end(),
                  [](const format::GgufTensor& tensor) { return tensor.name == "output.weight"; });
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", vocab != nullptr ? *vocab
                                          : std::ssize(need<std::vector<std::string>>(
                                                path, header, "tokenizer.ggml.tokens"))},
          {"hidden_size", integer("embedding_length")},
          {"intermediate_size", integer("feed_forward_length")},
          {"num_hidden_layers", integer("block_count")},
          {"num_attention_heads", integer("attention.head_count")},
          {"num_key_value_heads", integer("attention.head_count_kv")},
          {"hidden_act", "silu"},
          {"max_position_embeddings", integer("context_length")},
          {"rms_norm_eps", real("attention.layer_norm_rms_epsilon")},
          {"rope_theta", theta == nullptr ? 10000.0 : *theta},
          {"rope_scaling", nullptr},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", !has_head},
          {"bos_token_id", token_or_null(header, "bos_token_id")},
          {"eos_token_id", token_or_null(header, "eos_token_id")},
          {"pad_token_id", token_or_null(header, "padding_token_id")},
          {"torch_dtype", "float32"}};
}

/// How the text is cut before the pairs are merged. Empty for a `pre` that is not known here.
ordered_json pre_tokenizer(const std::string& pre) {
  ordered_json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  if (pre == "gpt-2") {
    return bytes;
  }
  if (pre == "smollm") {
    const ordered_json digits = {{"type", "Digits"}, {"individual_digits", true}};
    return {{"type", "Sequence"}, {"pretokenizers", {digits, bytes}}};
  }
  return {};
}

ordered_json added_tokens(const GgufHeader& header, const std::vector<std::string>& tokens) {
  const auto* types = find<std::vector<std::int64_t>>(header, "tokenizer.ggml.token_type");
  ordered_json added = ordered_json::array();
  for (std::size_t i = 0; types != nullptr && i < std::min(tokens.size(), types->size()); ++i) {
    if ((*types)[i] == kControlToken || (*types)[i] == kUserDefinedToken) {
      added.push_back({{"id", i},
                       {"content", tokens[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", (*types)[i] == kControlToken}});
    }
  }
  return added;
}

ordered_json tokenizer_config(const GgufHeader& header, const std::vector<std::string>& tokens) {
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"add_prefix_space", false},
                         {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, const char*> named[] = {{"bos_token", "bos_token_id"},
                                                       {"eos_token", "eos_token_id"},
                                                       {"unk_token", "unknown_token_id"},
                                                       {"pad_token", "padding_token_id"}};
  for (const auto& [name, key] : named) {
    const auto* id = find<std::int64_t>(header, std::string("tokenizer.ggml.") + key);
    if (id != nullptr && *id >= 0 && *id < std::ssize(tokens)) {
      config[name] = tokens[static_cast<std::size_t>(*id)];
    }
  }
  if (const auto* chat = find<std::string>(header, "tokenizer.chat_template")) {
    config["chat_template"] = *chat;
  }
  return config;
}

std::string dump(const ordered_json& json) {
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

/// Byte-pair encodings over bytes, as GPT-2's.
void add_tokenizer(const GgufHeader& header, std::map<std::string, std::string>& documents) {
  const auto* tokens = find<std::vector<std::string>>(header, "tokenizer.ggml.tokens");
  const auto* merges = find<std::vector<std::string>>(header, "tokenizer.ggml.merges");
  const auto* model = find<std::string>(header, "tokenizer.ggml.model");
  const auto* pre = find<std::string>(header, "tokenizer.ggml.pre");
  const auto* adds_begin = find<bool>(header, "tokenizer.ggml.add_bos_token");
  if (adds_begin != nullptr && *adds_begin) {
    return;  // a text that begins with a token of its own is not written here
  }
  if (tokens == nullptr || merges == nullptr || model == nullptr || *model != "gpt2" ||
      pre == nullptr || pre_tokenizer(*pre).is_null()) {
    return;
  }
  ordered_json vocab = ordered_json::object();
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    vocab.get_ref<ordered_json::object_t&>().emplace_back((*tokens)[i], i);
  }
  std::string merge_lines = "#version: 0.2\n";
  for (const std::string& merge : *merges) {
    merge_lines += merge + "\n";
  }
  documents["merges.txt"] = merge_lines;
  documents["vocab.json"] = dump(vocab);
  documents["tokenizer_config.json"] = dump(tokenizer_config(header, *tokens));
  documents["tokenizer.json"] = dump({{"version", "1.0"},
                                      {"truncation", nullptr},
                                      {"padding", nullptr},
                                      {"added_tokens", added_tokens(header, *tokens)},
                                      {"normalizer", nullptr},
                                      {"pre_tokenizer", pre_tokenizer(*pre)},
                                      {"post_processor", nullptr},
                                      {"decoder",
                                       {{"type", "ByteLevel"},
                                        {"add_prefix_space", true},
                                        {"trim_offsets", true},
                                        {"use_regex", true}}},
                                      {"model",
                                       {{"type", "BPE"},
                                        {"dropout", nullptr},
                                        {"unk_token", nullptr},
                                        {"continuing_subword_prefix", nullptr},
                                        {"end_of_word_suffix", nullptr},
                                        {"fuse_unk", false},
                                        {"byte_fallback", false},
                                        {"vocab", std::move(vocab)},
                                        {"merges", *merges}}}});
}

bool is_known(const std::string& key) {
  // Who made the file, and how; and the tokenizer, which changes no weight.
  for (const char* prefix : {"general.", "tokenizer.", "quantize."}) {
    if (key.starts_with(prefix)) {
      return true;
    }
  }
  const std::initializer_list<const char*> used = {
      "vocab_size",           "context_length",
      "embedding_length",     "block_count",
      "feed_forward_length",  "attention.head_count",
      "rope.freq_base",       "attention.head_count_kv",
      "rope.dimension_count", "attention.layer_norm_rms_epsilon",
      "attention.key_length", "attention.value_length"};
  return std::any_of(used.begin(), used.end(),
                     [&](const char* name) { return key == std::string("llama.") + name; });
}

}  // namespace

GgufHeads check_gguf_metadata(const std::string& path, const GgufHeader& header) {
  if (const auto* parts = find<std::int64_t>(header, "split.count"); parts && *parts > 1) {
    const auto* number = find<std::int64_t>(header, "split.no");  // counted from 0
    fail(ErrorCode::kUnsupported, "'", path, "' is part ", number == nullptr ? 1 : *number + 1,
         " of ", *parts,
         " of a model that was split: join them first, llama-gguf-split --merge FIRST-PART "
         "OUT.gguf");
  }
  const auto architecture = need<std::string>(path, header, "general.architecture");
  FSDP_CHECK(architecture == "llama", ErrorCode::kUnsupported, "'", path,
             "' holds a model of the architecture '", architecture, "'; llama is supported");
  std::string unknown;
  for (const auto& [key, value] : header.metadata) {
    if (!is_known(key)) {
      base::append_to_list(unknown, key);
    }
  }
  FSDP_CHECK(unknown.empty(), ErrorCode::kUnsupported, "'", path,
             "' has metadata that this library does not know: ", unknown);
  const GgufHeads heads{
      .heads = need<std::int64_t>(path, header, "llama.attention.head_count"),
      .kv_heads = need<std::int64_t>(path, header, "llama.attention.head_count_kv")};
  const auto width = need<std::int64_t>(path, header, "llama.embedding_length");
  FSDP_CHECK(heads.heads > 0 && heads.kv_heads > 0 && width > 0 && width % heads.heads == 0,
             ErrorCode::kCorrupt, "'", path, "' has ", heads.heads, " heads and ", heads.kv_heads,
             " key heads in a width of ", width);
  for (const char* key :
       {"rope.dimension_count", "attention.key_length", "attention.value_length"}) {
    const auto* value = find<std::int64_t>(header, std::string("llama.") + key);
    FSDP_CHECK(value == nullptr || *value == width / heads.heads, ErrorCode::kUnsupported, "'",
               path, "': llama.", key, " is ", value == nullptr ? 0 : *value, ", only ",
               width / heads.heads, ", a head's width, is supported");
  }
  return heads;
}

std::map<std::string, std::string> gguf_documents(const std::string& path,
                                                  const GgufHeader& header) {
  std::map<std::string, std::string> documents = {
      {"config.json", config_of(path, header).dump(2) + "\n"}};
  add_tokenizer(header, documents);
  return documents;
}

}  // namespace fsdp::archive::detail
