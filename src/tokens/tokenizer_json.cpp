// SPDX-License-Identifier: Apache-2.0
/// Hugging Face's tokenizer.json, as far as it describes a BPE of bytes or of characters: what
/// changes ids is either done the same way here or refused by name.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "fsdp/base/error.hpp"
#include "tokens/character_tokens.hpp"
#include "tokens/json_file.hpp"
#include "tokens/loaders.hpp"
#include "tokens/pattern.hpp"

namespace fsdp::tokens::detail {
namespace {

using nlohmann::json;

std::string numbered(const std::string& name, std::size_t index) {
  return name + "[" + std::to_string(index) + "]";
}

/// A list in an object, each part of which is read by `read(part, place)`.
template <class Read>
void for_each_part(const std::string& path, const KnownObject& object, const char* name,
                   Read&& read) {
  const json& parts = object.get(name);
  FSDP_CHECK(parts.is_array(), ErrorCode::kCorrupt, "'", path, "': ", object.place(), ".", name,
             " is not a list");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    read(parts[i], numbered(object.place() + "." + name, i));
  }
}

/// Appends the steps of a normalizer.
void read_normalizer(const std::string& path, const json& value, const std::string& place,
                     std::vector<NormalStep>& steps) {
  if (value.is_null()) {
    return;
  }
  const KnownObject object(path, place, value);
  const std::string type = object.text("type", "");
  if (type == "Sequence") {
    object.allow({"type", "normalizers"});
    for_each_part(path, object, "normalizers", [&](const json& part, const std::string& inner) {
      read_normalizer(path, part, inner, steps);
    });
  } else if (type == "NFC") {
    object.allow({"type"});
    steps.push_back({.kind = NormalStep::Kind::kCompose});
  } else if (type == "Prepend") {
    object.allow({"type", "prepend"});
    steps.push_back({.kind = NormalStep::Kind::kPrepend, .to = object.text("prepend", "")});
  } else if (type == "Replace") {
    object.allow({"type", "pattern", "content"});
    const KnownObject pattern(path, place + ".pattern", object.get("pattern"));
    pattern.allow({"String"});
    steps.push_back({.kind = NormalStep::Kind::kReplace,
                     .from = pattern.text("String", ""),
                     .to = object.text("content", "")});
  } else {
    object.refuse_type();
  }
}

/// Old files have a flag in its place.
std::string prepend_scheme(const KnownObject& metaspace) {
  const bool has_prefix = metaspace.flag("add_prefix_space", true);
  return metaspace.text("prepend_scheme", has_prefix ? "always" : "never");
}

/// Where tokens are spelled in characters; nothing where they are spelled in bytes. A model that
/// falls back to tokens of bytes is of the former.
std::optional<CharacterParts> read_characters(const std::string& path, const KnownObject& file) {
  const json& model = file.get("model");
  const json& pre_tokenizer = file.get("pre_tokenizer");
  const std::string type = pre_tokenizer.is_null()
                               ? ""
                               : KnownObject(path, "pre_tokenizer", pre_tokenizer).text("type", "");
  const bool falls_back = model.is_object() && model.value("byte_fallback", json(false)) == true;
  if (type != "Metaspace" && !(type.empty() && falls_back)) {
    return std::nullopt;
  }
  CharacterParts parts;
  if (type.empty()) {
    return parts;
  }
  const KnownObject object(path, "pre_tokenizer", pre_tokenizer);
  object.allow({"type", "replacement", "add_prefix_space", "prepend_scheme", "split"});
  FSDP_CHECK(object.text("replacement", std::string(kSpaceMark)) == kSpaceMark,
             ErrorCode::kUnsupported, "'", path, "': pre_tokenizer.replacement is not supported, '",
             kSpaceMark, "' is");
  const std::string scheme = prepend_scheme(object);
  FSDP_CHECK(scheme == "always" || scheme == "first" || scheme == "never", ErrorCode::kUnsupported,
             "'", path, "': pre_tokenizer.prepend_scheme '", scheme, "' is not supported");
  parts.metaspace = Metaspace{.prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                                         : scheme == "first" ? Metaspace::Prepend::kFirst
                                                             : Metaspace::Prepend::kNever,
                              .splits = object.flag("split", true)};
  return parts;
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
    for_each_part(path_, object, "pretokenizers",
                  [&](const json& part, const std::string& place) { read(part, place); });
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

/// Post-processors add special tokens around a text and move offsets; encode() does neither. The
/// token that one puts in front of a text goes to `begin`.
void check_post_processor(const std::string& path, const json& value, const std::string& place,
                          std::string& begin) {
  if (value.is_null()) {
    return;
  }
  const KnownObject object(path, place, value);
  const std::string type = object.text("type", "");
  if (type == "Sequence") {
    for_each_part(path, object, "processors", [&](const json& part, const std::string& inner) {
      check_post_processor(path, part, inner, begin);
    });
  } else if (type == "TemplateProcessing") {
    const json& single = object.get("single");
    const json first = single.is_array() && !single.empty() ? single.front() : json();
    if (first.is_object() && first.contains("SpecialToken") && first["SpecialToken"].is_object()) {
      begin = first["SpecialToken"].value("id", "");
    }
  } else if (type != "ByteLevel") {
    object.refuse_type();
  }
}

/// Decoders undo what is known to be done; only their types can surprise, and whether they take a
/// space off the begin of a text.
void check_decoder(const std::string& path, const json& value, const std::string& place,
                   BpeParts& parts) {
  const bool has_characters = parts.characters.has_value();
  if (value.is_null()) {
    return;
  }
  const KnownObject object(path, place, value);
  const std::string type = object.text("type", "");
  if (has_characters && type == "Sequence") {
    for_each_part(path, object, "decoders", [&](const json& part, const std::string& inner) {
      check_decoder(path, part, inner, parts);
    });
    return;
  }
  constexpr std::string_view kOfCharacters[] = {"Replace", "ByteFallback", "Fuse", "Strip",
                                                "Metaspace"};
  const bool is_known = has_characters
                            ? std::ranges::find(kOfCharacters, type) != std::end(kOfCharacters)
                            : type == "ByteLevel";
  if (!is_known) {
    object.refuse_type();
  }
  if (type == "Strip") {
    object.allow({"type", "content", "start", "stop"});
    FSDP_CHECK(object.text("content", " ") == " " && object.get("start") == json(1) &&
                   object.get("stop") == json(0),
               ErrorCode::kUnsupported, "'", path, "': ", place,
               " is not supported; one that takes one space off the begin is");
    parts.strips_space = true;
  } else if (type == "Metaspace") {
    parts.strips_space = prepend_scheme(object) != "never";
  }
}

void add_merge(BpeParts& parts, const std::string& path, std::size_t number, std::string_view left,
               std::string_view right) {
  const auto add = parts.characters ? add_character_merge : add_byte_level_merge;
  add(parts, path, number, left, right);
}

void read_merges(BpeParts& parts, const std::string& path, const json& merges) {
  FSDP_CHECK(merges.is_array(), ErrorCode::kCorrupt, "'", path, "': model.merges is not a list");
  for (std::size_t number = 0; number < merges.size(); ++number) {
    const json& merge = merges[number];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(parts, path, number, merge[0].get_ref<const std::string&>(),
                merge[1].get_ref<const std::string&>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t space = text.find(' ');
    FSDP_CHECK(space != std::string::npos && space == text.rfind(' '), ErrorCode::kCorrupt, "'",
               path, "': model.merges[", number, "] is neither two strings nor 'left right'");
    add_merge(parts, path, number, std::string_view(text).substr(0, space),
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
  if (parts.characters) {
    add_character_tokens(parts, model.get("vocab"), model.flag("byte_fallback", false));
    read_merges(parts, path, model.get("merges"));
    const std::string unknown = model.text("unk_token", "");
    parts.characters->unknown = unknown.empty() ? std::nullopt : parts.vocabulary.find(unknown);
    parts.characters->fuses_unknown = model.flag("fuse_unk", false);
    return;
  }
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
  for (const char* name : {"truncation", "padding"}) {
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
  std::vector<NormalStep> steps;
  read_normalizer(path, file.get("normalizer"), "normalizer", steps);
  parts.normalizer = Normalizer(std::move(steps));
  parts.characters = read_characters(path, file);
  PreTokenizer pre_tokenizer(path, parts.stages);
  if (!parts.characters && !file.get("pre_tokenizer").is_null()) {
    pre_tokenizer.read(file.get("pre_tokenizer"), "pre_tokenizer");
  }
  FSDP_CHECK(
      parts.characters || pre_tokenizer.is_byte_level(), ErrorCode::kUnsupported, "'", path,
      "': pre_tokenizer has no part of type 'ByteLevel', and the model no byte_fallback; only "
      "BPE of bytes and of characters that fall back to bytes are supported");
  check_post_processor(path, file.get("post_processor"), "post_processor", parts.begin);
  check_decoder(path, file.get("decoder"), "decoder", parts);
  read_model(parts, path, file.get("model"));
  read_added_tokens(parts, path, file.get("added_tokens"));
  return parts;
}

}  // namespace fsdp::tokens::detail
