// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tokens/tokenizer.hpp"

#include "base/hash.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::tokens {
namespace {

/// In the order that files have on every machine.
void add_number(base::Fnv1a& hash, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) {
    hash.add_value(static_cast<unsigned char>(number >> shift & 0xff));
  }
}

}  // namespace

std::vector<std::int64_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  std::vector<std::int64_t> all;
  encode(text, options, [&](std::span<const std::int64_t> ids, std::size_t) {
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool continues) const {
  std::string text;
  for (const std::int64_t id : ids) {
    const auto bytes = token(id);
    FSDP_CHECK(bytes, ErrorCode::kInvalidArgument, name(), " has no token ", id,
               "; its ids are below ", vocab_size());
    text += *bytes;
  }
  if (begins_with_space_ && !continues && text.starts_with(' ')) {
    text.erase(0, 1);
  }
  return text;
}

std::uint64_t Tokenizer::fingerprint() const {
  base::Fnv1a hash;
  for (std::int64_t id = 0; id < vocab_size(); ++id) {
    const auto bytes = token(id);
    add_number(hash, bytes ? bytes->size() : ~std::uint64_t{0});
    hash.add(bytes.value_or(""));
  }
  return hash.value();
}

}  // namespace fsdp::tokens
