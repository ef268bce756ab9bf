// SPDX-License-Identifier: Apache-2.0
/// The regular expressions of tokenizers, written for Oniguruma (Hugging Face) or Rust's regex
/// (tiktoken), in PCRE2's words.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::tokens::detail {

/// The same pattern for PCRE2. `\s` becomes `\p{White_Space}`, for PCRE2's own also takes U+180E;
/// what the three engines read in different ways is refused rather than guessed.
/// @throws Error kUnsupported naming the construct and its place
std::string to_pcre2(std::string_view pattern);

/// GPT-2's (encoder.py).
extern const char* const kGpt2Pattern;
/// One digit, or a run of digits: Hugging Face's pre-tokenizer Digits.
extern const char* const kDigitPattern;
extern const char* const kDigitsPattern;

}  // namespace fsdp::tokens::detail
