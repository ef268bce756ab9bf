// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::tokens {
namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::size_t kBatch = std::size_t{1} << 15;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      all_[i] = static_cast<char>(i);
    }
  }

  const std::string& name() const override { return name_; }
  std::int64_t vocab_size() const override { return kBytes; }
  std::optional<std::string_view> token(std::int64_t id) const override {
    if (id < 0 || id >= kBytes) {
      return std::nullopt;
    }
    return std::string_view(all_.data() + id, 1);
  }

  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions& /*options*/,
              const TokenSink& sink) const override {
    std::vector<std::int64_t> ids;
    for (std::size_t at = 0; at < text.size(); at += ids.size()) {
      const std::string_view part = text.substr(at, kBatch);
      ids.resize(part.size());
      std::transform(part.begin(), part.end(), ids.begin(),
                     [](char byte) { return static_cast<unsigned char>(byte); });
      sink(ids, at + ids.size());
    }
  }

 private:
  std::string name_ = "bytes";
  std::array<char, kBytes> all_{};
};

}  // namespace

std::shared_ptr<const Tokenizer> bytes() { return std::make_shared<ByteTokenizer>(); }

}  // namespace fsdp::tokens
