// SPDX-License-Identifier: Apache-2.0
/// Hugging Face's tokenizer.json, as far as it describes a byte-level BPE: what changes ids is
/// either done the same way here or refused by name.
#include <cstdint>
#include <utility>

#include "fsdp/base/error.hpp"
#include "tokens/json_file.hpp"
#include "tokens/loaders.hpp"
#include "tokens/pattern.hpp"

namespace fsdp::tokens::detail {
namespace {

using nlohmann::json;

std::string numbered(const std::string& name, std::size_t index) {
  return name + "[" + std::to_string(index) + "]";
}

// Pre-tokenizers: each becomes patterns that cut text.

/// A pre-tokenizer of its own, or one in a sequence.
class PreTokenizer {
 public:
  PreTokenizer(const std::string& path, std::vector<std::string>& stages)
      : path_(path), stages_(stages) {}

  void read(const json& value, const std::string& place) {
    const KnownObject object(path_, place, value);
    const std::string type = object.text("type", "");
    FSDP_CHECK(!is_byte_level_, ErrorCode::kUnsupported, "'", path_, "': ", place, " of type '",
               type, "' after one of type 'ByteLevel' is not supported");
    if (type == "Sequence") {
      sequence(object);
    } else if (type == "Split") {
      split(object);
    } else if (type == "Digits") {
      object.allow({"type", "individual_digits"});
      add(object.flag("individual_digits", false) ? kDigitPattern : kDigitsPattern);
    } else if (type == "ByteLevel") {
      byte_level(object);
    } else {
      object.refuse_type();
    }
  }

  bool is_byte_level() const { return is_byte_level_; }

 private:
  void add(std::string_view pattern) { stages_.push_back(to_pcre2(pattern)); }

  void sequence(const KnownObject& object) {
    object.allow({"type", "pretokenizers"});
    const json& parts = object.get("pretokenizers");
    FSDP_CHECK(parts.is_array(), ErrorCode::kCorrupt, "'", path_, "': ", object.place(),
               ".pretokenizers is not a list");
    for (std::size_t i = 0; i < parts.size(); ++i) {
      read(parts[i], numbered(object.place() + ".pretokenizers", i));
    }
  }

  void split(const KnownObject& object) {
    object.allow({"type", "pattern", "behavior", "invert"});
    object.refuse("invert");
    const std::string behavior = object.text("behavior", "");
    FSDP_CHECK(behavior == "Isolated", ErrorCode::kUnsupported, "'", path_, "': ", object.place(),
               ".behavior '", behavior, "' is not supported, 'Isolated' is");
    const KnownObject pattern(path_, object.place() + ".pattern", object.get("pattern"));
    pattern.allow({"Regex"});
    add(pattern.text("Regex", ""));
  }

  void byte_level(const KnownObject& object) {
    object.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    FSDP_CHECK(!object.flag("add_prefix_space", true), ErrorCode::kUnsupported, "'", path_,
               "': ", object.place(), ".add_prefix_space is not supported");
    if (object.flag("use_regex", true)) {
      add(kGpt2Pattern);
    }
    is_byte_level_ = true;
  }

  const std::string& path_;
  std::vector<std::string>& stages_;
  bool is_byte_level_ = false;
};

/// Post-processors add special tokens around a text and move offsets; encode() does neither.
void check_post_processor(const std::string& path, const json& value, const std::string& place) {
  if (value.is_null()) {
    return;
  }
  const KnownObject object(path, place, value);
  const std::string type = object.text("type", "");
  if (type == "Sequence") {
    const json& parts = object.get("processors");
    FSDP_CHECK(parts.is_array(), ErrorCode::kCorrupt, "'", path, "': ", place,
               ".processors is not a list");
    for (std::size_t i = 0; i < parts.size(); ++i) {
      check_post_processor(path, parts[i], numbered(place + ".processors", i));
    }
  } else if (type != "ByteLevel" && type != "TemplateProcessing") {
    object.refuse_type();
  }
}

void check_decoder(const std::string& path, const json& value) {
  if (value.is_null()) {
    return;
  }
  const KnownObject object(path, "decoder", value);
  if (object.text("type", "") != "ByteLevel") {
    object.refuse_type();
  }
}

void read_merges(BpeParts& parts, const std::string& path, const json& merges) {
  FSDP_CHECK(merges.is_array(), ErrorCode::kCorrupt, "'", path, "': model.merges is not a list");
  for (std::size_t number = 0; number < merges.size(); ++number) {
    const json& merge = merges[number];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_byte_level_merge(parts, path, number, merge[0].get_ref<const std::string&>(),
                           merge[1].get_ref<const std::string&>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t space = text.find(' ');
    FSDP_CHECK(space != std::string::npos && space == text.rfind(' '), ErrorCode::kCorrupt, "'",
               path, "': model.merges[", number, "] is neither two strings nor 'left right'");
    add_byte_level_merge(parts, path, number, std::string_view(text).substr(0, space),
                         std::string_view(text).substr(space + 1));
  }
}

void read_model(BpeParts& parts, const std::string& path, const json& value) {
  const KnownObject model(path, "model", value);
  model.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.text("type", "BPE") != "BPE") {
    model.refuse_type();
  }
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    model.refuse(name);
  }
  parts.whole_pieces_first = model.flag("ignore_merges", false);
  add_byte_level_tokens(parts.vocabulary, model.get("vocab"));
  read_merges(parts, path, model.get("merges"));
  // With a token for every byte nothing is ever unknown, and these three mean nothing.
  for (const Id id : parts.vocabulary.single_bytes()) {
    if (id < 0) {
      for (const char* name : {"unk_token", "fuse_unk", "byte_fallback"}) {
        model.refuse(name);
      }
    }
  }
}

void read_added_tokens(BpeParts& parts, const std::string& path, const json& list) {
  FSDP_CHECK(list.is_array() || list.is_null(), ErrorCode::kCorrupt, "'", path,
             "': added_tokens is not a list");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const KnownObject token(path, numbered("added_tokens", i), list[i]);
    token.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
      token.refuse(name);
    }
    const std::string content = token.text("content", "");
    FSDP_CHECK(!content.empty(), ErrorCode::kCorrupt, "'", path, "': ", token.place(),
               " has no content");
    const std::int64_t id = token.integer("id");
    parts.vocabulary.add_literal(id, content);
    const bool is_special = token.flag("special", false);
    parts.added.push_back({.id = static_cast<Id>(id),
                           .text = content,
                           .is_special = is_special,
                           .is_second = token.flag("normalized", !is_special)});
  }
}

}  // namespace

BpeParts parse_tokenizer_json(const std::string& path, std::string_view text) {
  const json parsed = parse_json(path, text);
  const KnownObject file(path, "the file", parsed);
  file.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  for (const char* name : {"truncation", "padding", "normalizer"}) {
    FSDP_CHECK(file.get(name).is_null(), ErrorCode::kUnsupported, "'", path, "': ", name,
               file.get(name).is_object()
                   ? " of type '" + KnownObject(path, name, file.get(name)).text("type", "") + "'"
                   : "",
               " is not supported");
  }
  BpeParts parts;
  parts.name = "byte-level BPE (tokenizer.json)";
  parts.vocabulary = Vocabulary(path);
  // What may be refused comes first, so that the message names the kind of file it is.
  PreTokenizer pre_tokenizer(path, parts.stages);
  if (!file.get("pre_tokenizer").is_null()) {
    pre_tokenizer.read(file.get("pre_tokenizer"), "pre_tokenizer");
  }
  FSDP_CHECK(pre_tokenizer.is_byte_level(), ErrorCode::kUnsupported, "'", path,
             "': pre_tokenizer has no part of type 'ByteLevel'; only byte-level vocabularies are "
             "supported");
  check_post_processor(path, file.get("post_processor"), "post_processor");
  check_decoder(path, file.get("decoder"));
  read_model(parts, path, file.get("model"));
  read_added_tokens(parts, path, file.get("added_tokens"));
  return parts;
}

}  // namespace fsdp::tokens::detail
