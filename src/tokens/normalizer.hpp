// SPDX-License-Identifier: Apache-2.0
/// What is done to a text before it is cut into pieces: Hugging Face's normalizers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokens::detail {

/// One change of a text.
struct NormalStep {
  enum class Kind {
    kCompose,  ///< Unicode's normalization form C
    kPrepend,  ///< `to` goes in front of a text that is not empty
    kReplace,  ///< each `from` becomes `to`
  };
  Kind kind = Kind::kCompose;
  std::string from = {}, to = {};
};

/// Steps, one after the other.
///
/// *Thread safety*: immutable.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalStep> steps) : steps_(std::move(steps)) {}

  bool is_empty() const { return steps_.empty(); }
  /// What becomes of `text`, which is UTF-8; nothing when it stays as it is.
  /// @memory as much as the text, where it changes
  std::optional<std::string> changed(std::string_view text) const;

 private:
  std::vector<NormalStep> steps_;
};

/// Unicode's normalization form C of a text in UTF-8, by the tables of libutf8proc; nothing when it
/// is in that form.
std::optional<std::string> composed(std::string_view text);

}  // namespace fsdp::tokens::detail
