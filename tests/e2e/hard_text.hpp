// SPDX-License-Identifier: Apache-2.0
/// Text that tokenizers stumble over.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "tokens/utf8.hpp"

namespace fsdp::test {

/// What tokenizers stumble over.
inline std::string hard_text() {
  std::string text =
      "\n\n\n \n  \n\t\n a\r\n\r\r\nb\n"
      "I'm you're we've they'll he'd it's DON'T WE'LL I'M '' 's'S'ſ '\n"
      "   leading, trailing   \n            x          12345678901234567890 3.14e-10 1,000,000\n"
      "👩\u200d👩\u200d👧 👍🏽 🇩🇪 ❤️\n"
      "e\u0301 é o\u0308\u0323 क्ष Z\u0336\u0327a\n"
      "你好，世界。 コンニチハ 안녕\n"
      "שלום مرحبا ١٢٣\n"
      "½ Ⅷ ² १२ 𝟘𝔞\n"
      "a\u00a0\u00a0z\u180ez\u200bz\u3000\u3000z\u0085z\u2028z\ufeff\n"
      "{\"key\": [1, 2]} <|endoftext|> <|begin_of_text|><|im_start|> "
      "for(;;){i++;}//--==>>!!??...\n";
  text += std::string("NUL \0 and \x01\x02\x7f\x1b[0m", 17) + std::string(5000, ' ') + "|" +
          std::string(5000, '\n') + "|" + std::string(3000, 'a') + std::string(3000, '-') +
          std::string(999, '\t') + "end";
  return text;
}

/// Words of random characters of the planes and scripts that all engines know.
inline std::string random_text(std::size_t characters) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kRanges[] = {
      {0x20, 0x7e},     {0x20, 0x7e},     {0xa0, 0x24f},    {0x300, 0x36f},     {0x370, 0x3ff},
      {0x400, 0x4ff},   {0x5d0, 0x5ea},   {0x620, 0x64a},   {0x660, 0x669},     {0x905, 0x939},
      {0x1e00, 0x1eff}, {0x2000, 0x206f}, {0x20a0, 0x20bf}, {0x2150, 0x2188},   {0x2190, 0x21ff},
      {0x3041, 0x3096}, {0x4e00, 0x9fa5}, {0xac00, 0xd7a3}, {0x1f300, 0x1f5ff}, {0x20000, 0x2a6d6}};
  std::mt19937 random(7);
  std::string text;
  for (std::size_t i = 0; i < characters; ++i) {
    const auto& [first, last] = kRanges[random() % std::size(kRanges)];
    tokens::detail::append_utf8(text,
                                first + static_cast<std::uint32_t>(random()) % (last - first + 1));
    if (random() % 4 == 0) {
      text += random() % 16 == 0 ? '\n' : ' ';
    }
  }
  return text;
}

}  // namespace fsdp::test
