// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tokens/tokenizer.hpp"

#include "fsdp/base/error.hpp"

namespace fsdp::tokens {
namespace {

/// FNV-1a of 64 bits.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
    }
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      const auto byte = static_cast<char>(number >> shift & 0xff);
      add(std::string_view(&byte, 1));
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace

std::vector<std::int64_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  std::vector<std::int64_t> all;
  encode(text, options, [&](std::span<const std::int64_t> ids, std::size_t) {
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    const auto bytes = token(id);
    FSDP_CHECK(bytes, ErrorCode::kInvalidArgument, name(), " has no token ", id,
               "; its ids are below ", vocab_size());
    text += *bytes;
  }
  return text;
}

std::uint64_t Tokenizer::fingerprint() const {
  Hash hash;
  for (std::int64_t id = 0; id < vocab_size(); ++id) {
    const auto bytes = token(id);
    hash.add(bytes ? bytes->size() : ~std::uint64_t{0});
    hash.add(bytes.value_or(""));
  }
  return hash.value();
}

}  // namespace fsdp::tokens
