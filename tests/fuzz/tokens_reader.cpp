// SPDX-License-Identifier: Apache-2.0
/// Bytes from outside as the files of a tokenizer: the loader accepts them or throws fsdp::Error,
/// and nothing else. What it accepts encodes text and gives the same bytes back. The first byte of
/// the input chooses the loader, so that one corpus serves all.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fsdp/base/error.hpp"
#include "reader.hpp"
#include "tokens/bpe.hpp"
#include "tokens/loaders.hpp"
#include "tokens/pattern.hpp"
#include "tokens/regex.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::tokens;

constexpr std::string_view kText = "The 12 lights,\n\n  it's \xc3\xa9\xff\xe2\x82 <|end|>a\x01";

void check(detail::BpeParts parts, const std::optional<detail::TokenizerConfig>& config) {
  detail::set_ends(parts, config);
  const detail::BpeTokenizer tokenizer(std::move(parts));
  for (const bool special : {false, true}) {
    const auto ids = tokenizer.encode(kText, {.special_tokens = special});
    FSDP_ASSERT(tokenizer.decode(ids) == kText, "another text comes back");
    for (const std::int64_t id : ids) {
      FSDP_ASSERT(id >= 0 && id < tokenizer.vocab_size(), id);
    }
  }
}

void check_pattern(const std::string& pattern) {
  const detail::Regex regex(detail::to_pcre2(pattern));
  std::size_t at = 0;
  const std::string_view text = kText.substr(0, 20);  // valid UTF-8
  while (const auto match = regex.next(text, at)) {
    FSDP_ASSERT(match->begin >= at && match->end > match->begin && match->end <= text.size(), at);
    at = match->end;
  }
}

void read_as(char loader, const std::string& text) {
  switch (loader) {
    case 'j': return check(detail::parse_tokenizer_json("input", text), std::nullopt);
    case 'g': {  // a vocabulary, a line of dashes, merges
      const std::size_t cut = text.find("\n--\n");
      const bool has_merges = cut != std::string::npos;
      return check(detail::parse_gpt2_files("vocabulary", text.substr(0, cut), "merges",
                                            has_merges ? text.substr(cut + 4) : ""),
                   std::nullopt);
    }
    case 't': return check(detail::parse_tiktoken("input", text), std::nullopt);
    case 'c': detail::parse_tokenizer_config("input", text); return;
    default: return check_pattern(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run_reader(data, size, read_as);
}
