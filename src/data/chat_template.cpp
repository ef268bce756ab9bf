// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/chat_template.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/content.hpp"
#include "data/jinja.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data {

using detail::Content;
using detail::Jinja;
using nlohmann::ordered_json;

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kFile = "chat_template.jinja";

std::string read(const fs::path& path) { return std::string(Content(path.string()).text()); }

/// The text of a token, written as such or as an object.
std::string token_text(const ordered_json& value) {
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return value.is_string() ? value.get<std::string>() : "";
}

/// All "..._token" of a tokenizer's configuration, as templates use them.
ordered_json special_tokens(const ordered_json& config) {
  ordered_json tokens = ordered_json::object();
  for (const auto& [name, value] : config.items()) {
    if (name.ends_with("_token") && !token_text(value).empty()) {
      tokens[name] = token_text(value);
    }
  }
  return tokens;
}

/// A text, or a list of named ones.
std::string template_of(const ordered_json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  for (const ordered_json& named : value.is_array() ? value : ordered_json::array()) {
    if (named.is_object() && named.value("name", "") == "default") {
      return named.value("template", "");
    }
  }
  return "";
}

}  // namespace

bool has_chat_templates() { return why_no_chat_templates().empty(); }
std::string why_no_chat_templates() { return Jinja::why_not(); }

struct ChatTemplate::Parts {
  Parts(std::string from, std::string text, ordered_json names)
      : path(std::move(from)), source(std::move(text)), tokens(std::move(names)), jinja(source) {}
  std::string path, source;
  ordered_json tokens;
  Jinja jinja;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const std::string& directory) {
  FSDP_CHECK(has_chat_templates(), ErrorCode::kUnsupported, why_no_chat_templates());
  std::error_code ignored;
  const fs::path config_path = fs::path(directory) / kConfig, file = fs::path(directory) / kFile;
  ordered_json config = ordered_json::object();
  if (fs::exists(config_path, ignored)) {
    config = ordered_json::parse(read(config_path), nullptr, /*allow_exceptions=*/false);
    FSDP_CHECK(config.is_object(), ErrorCode::kCorrupt, "'", config_path.string(),
               "' is not an object in JSON");
  }
  const bool has_file = fs::exists(file, ignored);
  const std::string source =
      has_file ? read(file) : template_of(config.value("chat_template", ordered_json()));
  FSDP_CHECK(
      !source.empty(), ErrorCode::kNotFound, "'", directory, "' has no chat template: neither ",
      kFile, " nor chat_template in ", kConfig,
      ". Messages need the one that the model was trained with; data of prompt and completion "
      "needs none");
  const std::string path = (has_file ? file : config_path).string();
  try {
    return ChatTemplate(std::make_unique<Parts>(path, source, special_tokens(config)));
  } catch (const std::exception& error) {
    fail(ErrorCode::kCorrupt, "'", path, "': the chat template cannot be read: ", error.what());
  }
}

std::string ChatTemplate::render(std::string_view messages, bool opens_answer,
                                 std::string_view tools) const {
  ordered_json variables = parts_->tokens;
  variables["messages"] = ordered_json::parse(messages);
  variables["tools"] = tools.empty() ? ordered_json() : ordered_json::parse(tools);
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = opens_answer;
  try {
    return parts_->jinja.render(variables.dump());
  } catch (const std::exception& error) {
    fail(ErrorCode::kInvalidArgument, "'", parts_->path,
         "': the chat template refuses the conversation: ", error.what());
  }
}

std::string ChatTemplate::ask(const std::string& question, const std::string& system) const {
  ordered_json messages = ordered_json::array();
  if (!system.empty()) {
    messages.push_back({{"role", "system"}, {"content", system}});
  }
  messages.push_back({{"role", "user"}, {"content", question}});
  return render(messages.dump(-1, ' ', false, ordered_json::error_handler_t::replace), true);
}

const std::string& ChatTemplate::source() const { return parts_->source; }
const std::string& ChatTemplate::path() const { return parts_->path; }

}  // namespace fsdp::data
