// SPDX-License-Identifier: Apache-2.0
#include "tokens/pattern.hpp"

#include <cstddef>

#include "fsdp/base/error.hpp"

namespace fsdp::tokens::detail {
namespace {

/// Walks a pattern once, knowing only escapes and bracket classes.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char character = pattern_[at_];
      if (character == '\\') {
        escape();
      } else if (in_class_) {
        inside_class(character);
      } else {
        outside_class(character);
      }
    }
    return std::move(text_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::kUnsupported, "the regular expression '", pattern_, "' uses '", construct,
         "' at byte ", at_, ", which regular expression engines read in different ways");
  }

  void copy(std::size_t count) {
    text_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void escape() {
    constexpr std::string_view kSame = "pPdDrntf";
    if (at_ + 1 == pattern_.size()) {
      refuse("\\");
    }
    const char escaped = pattern_[at_ + 1];
    const bool is_letter_or_digit = (escaped >= '0' && escaped <= '9') ||
                                    (escaped >= 'A' && escaped <= 'Z') ||
                                    (escaped >= 'a' && escaped <= 'z');
    if (escaped == 's' || escaped == 'S') {
      text_ += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (pattern_.substr(at_ + 1, 2) == "p{" || pattern_.substr(at_ + 1, 2) == "P{") {
      const std::size_t end = pattern_.find('}', at_);
      copy(end == std::string_view::npos ? 3 : end + 1 - at_);
    } else if (!is_letter_or_digit || kSame.find(escaped) != std::string_view::npos) {
      copy(2);
    } else {
      refuse(pattern_.substr(at_, 2));
    }
  }

  void inside_class(char character) {
    if (character == '[') {
      refuse("a class inside a class");
    }
    if (pattern_.substr(at_, 2) == "&&") {
      refuse("&&");
    }
    in_class_ = character != ']' || at_ == class_begin_;
    copy(1);
  }

  void outside_class(char character) {
    if (character == '^' || character == '$' || character == '.') {
      refuse(pattern_.substr(at_, 1));
    }
    if (pattern_.substr(at_, 2) == "}+") {
      refuse("}+");  // possessive, or repeated
    }
    if (pattern_.substr(at_, 2) == "(?") {
      return group();
    }
    if (character == '[') {
      in_class_ = true;
      const bool is_negated = pattern_.substr(at_, 2) == "[^";
      class_begin_ = at_ + (is_negated ? 2 : 1);
      return copy(is_negated ? 2 : 1);
    }
    copy(1);
  }

  void group() {
    for (const std::string_view known : {"(?:", "(?i:", "(?!", "(?="}) {
      if (pattern_.substr(at_, known.size()) == known) {
        return copy(known.size());
      }
    }
    refuse(pattern_.substr(at_, 3));
  }

  std::string_view pattern_;
  std::string text_;
  std::size_t at_ = 0;
  std::size_t class_begin_ = 0;  ///< a "]" here belongs to the class
  bool in_class_ = false;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kDigitPattern = R"(\p{N})";
const char* const kDigitsPattern = R"(\p{N}+)";

}  // namespace fsdp::tokens::detail
