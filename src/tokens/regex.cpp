// SPDX-License-Identifier: Apache-2.0
#include "tokens/regex.hpp"

#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "fsdp/base/error.hpp"

namespace fsdp::tokens::detail {
namespace {

// Enough for backtracking over a megabyte of one character class in the patterns in use.
constexpr std::size_t kFirstStackBytes = std::size_t{32} << 10;
constexpr std::size_t kMostStackBytes = std::size_t{64} << 20;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

std::string reason(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR as_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_data, Free> match;
  std::unique_ptr<pcre2_match_context, Free> context;
  std::unique_ptr<pcre2_jit_stack, Free> stack;
};

Regex::Regex(const std::string& pattern)
    : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  int code = 0;
  PCRE2_SIZE place = 0;
  compiled_->code.reset(pcre2_compile(as_units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                      &code, &place, nullptr));
  FSDP_CHECK(compiled_->code, ErrorCode::kUnsupported, "the regular expression '", pattern,
             "' does not compile: ", reason(code), ", at byte ", place);
  compiled_->match.reset(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  // Where a system forbids memory that is writable and executable, PCRE2 interprets the pattern.
  if (pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE) == 0) {
    compiled_->stack.reset(pcre2_jit_stack_create(kFirstStackBytes, kMostStackBytes, nullptr));
    pcre2_jit_stack_assign(compiled_->context.get(), nullptr, compiled_->stack.get());
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::next(std::string_view text, std::size_t begin) const {
  const int found = pcre2_match(compiled_->code.get(), as_units(text), text.size(), begin,
                                PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, compiled_->match.get(),
                                compiled_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  FSDP_CHECK(found >= 0, ErrorCode::kUnsupported, "the regular expression '", pattern_,
             "' cannot be matched at byte ", begin, " of a text of ", text.size(),
             " bytes: ", reason(found));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(compiled_->match.get());
  return Match{.begin = ends[0], .end = ends[1]};
}

}  // namespace fsdp::tokens::detail
