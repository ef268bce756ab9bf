// SPDX-License-Identifier: Apache-2.0
/// A model's own chat template: how a conversation becomes the text that the model was trained on.
/// Templates are programs in Jinja; what runs them is fetched when the build is configured, see
/// has_chat_templates().
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Whether this build can run templates; `why_not` says what is missing, empty for nothing.
bool has_chat_templates();
std::string why_no_chat_templates();

/// A template and the names of special tokens that it may use.
///
/// *Thread safety*: calls of render() must not overlap. *Example*:
///
///     const auto chat = fsdp::data::ChatTemplate::load("models/smollm2");
///     std::string text = chat.render(R"([{"role": "user", "content": "Hello"}])", true);
class ChatTemplate {
 public:
  /// The template that lies beside a tokenizer: `chat_template.jinja`, or the one in
  /// `tokenizer_config.json`, of several the one named "default".
  /// @throws Error kNotFound for a model without one; kCorrupt for one that cannot be read;
  /// kUnsupported in a build without templates, saying what is missing
  static ChatTemplate load(const std::string& directory);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// The text of a conversation, as transformers' apply_chat_template() makes it. `messages` is a
  /// list in JSON; `tools` is one or empty; with `opens_answer` the text ends where an answer
  /// begins.
  /// @throws Error kInvalidArgument when the template refuses the conversation, with its words
  std::string render(std::string_view messages, bool opens_answer,
                     std::string_view tools = {}) const;

  /// A conversation of one question, open for its answer; without a system message if `system` is
  /// empty. @throws as render()
  std::string ask(const std::string& question, const std::string& system = {}) const;

  /// The template's text, which decides what is made of data.
  const std::string& source() const;
  /// The file that it comes from.
  const std::string& path() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp::data
