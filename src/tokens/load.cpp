// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <filesystem>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "tokens/bpe.hpp"
#include "tokens/json_file.hpp"
#include "tokens/loaders.hpp"

namespace fsdp::tokens {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";
constexpr const char* kConfig = "tokenizer_config.json";

enum class Format { kTokenizerJson, kGpt2, kTiktoken };

/// The files of one tokenizer.
struct Found {
  Format format = Format::kTokenizerJson;
  std::string main;    ///< the vocabulary
  std::string merges;  ///< GPT-2's second file
  std::string config;  ///< empty: there is none
};

/// A vocabulary and its merges go by one of two pairs of names.
constexpr std::array<std::pair<const char*, const char*>, 2> kGpt2Names = {
    {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string config_beside(const fs::path& file) {
  const fs::path config = file.parent_path() / kConfig;
  return is_there(config) ? config.string() : "";
}

std::optional<Found> gpt2_in(const fs::path& directory) {
  for (const auto& [vocabulary, merges] : kGpt2Names) {
    if (is_there(directory / vocabulary) && is_there(directory / merges)) {
      return Found{.format = Format::kGpt2,
                   .main = (directory / vocabulary).string(),
                   .merges = (directory / merges).string(),
                   .config = config_beside(directory / vocabulary)};
    }
  }
  return std::nullopt;
}

Found gpt2_beside(const fs::path& file) {
  const auto found = gpt2_in(file.parent_path());
  FSDP_CHECK(found, ErrorCode::kNotFound, "'", file.string(),
             "' is one of two files of a GPT-2 tokenizer; the other is not beside it. They are "
             "called vocab.json and merges.txt, or encoder.json and vocab.bpe");
  return *found;
}

/// Whether an object has the member "model" that is an object: in a vocabulary it is a number.
bool has_model(std::string_view json) {
  constexpr std::string_view kName = "\"model\"";
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t at = 0; (at = json.find(kName, at)) != std::string_view::npos;) {
    at += kName.size();
    const std::size_t colon = json.find_first_not_of(kSpace, at);
    const std::size_t value = colon == std::string_view::npos || json[colon] != ':'
                                  ? std::string_view::npos
                                  : json.find_first_not_of(kSpace, colon + 1);
    if (value != std::string_view::npos && json[value] == '{') {
      return true;
    }
  }
  return false;
}

Found look_at_file(const fs::path& file, const std::string& content) {
  Found found;
  found.main = file.string();
  found.config = config_beside(file);
  if (content.starts_with("#version")) {
    return gpt2_beside(file);
  }
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && content[first] == '{') {
    return has_model(content) ? found : gpt2_beside(file);
  }
  if (detail::looks_like_tiktoken(content)) {
    found.format = Format::kTiktoken;
    return found;
  }
  // A serialized ModelProto begins with its first piece: field 1, a message.
  fail(ErrorCode::kUnsupported, "'", found.main, "' is ",
       content.starts_with('\n') ? "a sentencepiece model, which is not supported"
                                 : "no tokenizer that is known",
       "; supported are tokenizer.json with a BPE, GPT-2's vocabulary and merges, and "
       "tiktoken's ranks");
}

Found look_into(const fs::path& directory) {
  const fs::path json = directory / "tokenizer.json";
  if (is_there(json)) {
    return look_at_file(json, detail::read_file(json.string()));
  }
  if (const auto found = gpt2_in(directory)) {
    return *found;
  }
  std::vector<fs::path> others;
  if (is_there(directory / "tokenizer.model")) {
    others.push_back(directory / "tokenizer.model");
  } else {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      if (entry.path().extension() == ".tiktoken") {
        others.push_back(entry.path());
      }
    }
  }
  FSDP_CHECK(others.size() == 1, ErrorCode::kNotFound, "directory '", directory.string(),
             "' holds no tokenizer: it has no tokenizer.json, no vocab.json with merges.txt, no "
             "encoder.json with vocab.bpe, no tokenizer.model, and ",
             others.size(), " .tiktoken files");
  return look_at_file(others.front(), detail::read_file(others.front().string()));
}

Found look_at(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  FSDP_CHECK(fs::status_known(status), ErrorCode::kIo, "'", path,
             "' cannot be read: ", error.message());
  FSDP_CHECK(fs::exists(status), ErrorCode::kNotFound, "tokenizer '", path, "' does not exist");
  return fs::is_directory(status) ? look_into(path) : look_at_file(path, detail::read_file(path));
}

bool is_bytes(const std::string& path) { return path == kBytes && !is_there(path); }

/// What people call it: the directory it lies in.
std::string label(const Found& found) {
  const fs::path file = fs::absolute(found.main);
  return found.format == Format::kTiktoken || file.parent_path() == file.root_path()
             ? file.filename().string()
             : file.parent_path().filename().string();
}

detail::BpeParts read_parts(const Found& found,
                            const std::optional<detail::TokenizerConfig>& config) {
  const std::string content = detail::read_file(found.main);
  if (found.format == Format::kTiktoken) {
    return detail::parse_tiktoken(found.main, content);
  }
  if (found.format == Format::kTokenizerJson) {
    detail::BpeParts parts = detail::parse_tokenizer_json(found.main, content);
    detail::set_ends(parts, config);
    return parts;
  }
  FSDP_CHECK(!config || config->tokenizer_class.empty() ||
                 config->tokenizer_class.starts_with("GPT2Tokenizer"),
             ErrorCode::kUnsupported, "'", found.config, "' says that the tokenizer is a ",
             config ? config->tokenizer_class : "", "; from ", found.main,
             " and its merges only GPT-2's can be made: its tokenizer.json is needed");
  detail::BpeParts parts =
      detail::parse_gpt2_files(found.main, content, found.merges, detail::read_file(found.merges));
  detail::set_ends(parts, config);
  return parts;
}

}  // namespace

std::shared_ptr<const Tokenizer> load(const std::string& path) {
  if (is_bytes(path)) {
    return bytes();
  }
  const Found found = look_at(path);
  std::optional<detail::TokenizerConfig> config;
  if (!found.config.empty()) {
    config = detail::parse_tokenizer_config(found.config, detail::read_file(found.config));
  }
  detail::BpeParts parts = read_parts(found, config);
  if (found.format != Format::kTiktoken) {
    parts.name =
        (parts.characters ? "BPE of characters (" : "byte-level BPE (") + label(found) + ")";
  }
  return std::make_shared<detail::BpeTokenizer>(std::move(parts));
}

std::vector<std::string> files_of(const std::string& path) {
  if (is_bytes(path)) {
    return {};
  }
  const Found found = look_at(path);
  std::vector<std::string> files = {found.main};
  for (const std::string& more : {found.merges, found.config}) {
    if (!more.empty()) {
      files.push_back(more);
    }
  }
  return files;
}

}  // namespace fsdp::tokens
