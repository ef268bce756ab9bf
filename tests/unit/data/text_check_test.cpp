// SPDX-License-Identifier: Apache-2.0
#include "data/text_check.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include "data/mapped_file.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/tokenize.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

detail::TextShare share_of(const std::string& text) {
  return detail::text_share({reinterpret_cast<const unsigned char*>(text.data()), text.size()});
}

class TextCheckTest : public ::testing::Test {
 protected:
  /// Why check_content() refuses what `path` names.
  static std::string refusal(const std::string& path) {
    try {
      check_content(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.text();
    }
    return "accepted";
  }
  std::string refusal(const std::string& name, const std::string& bytes) const {
    return refusal(directory_.write(name, bytes));
  }

  fsdp::test::TemporaryDirectory directory_;
  std::string text_ = std::string(999, 'a') + "\n";
};

TEST_F(TextCheckTest, EveryByteOutsideOfUtf8Counts) {
  EXPECT_EQ(share_of("").looked_at, 0);
  EXPECT_EQ(share_of("plain text of more than eight bytes").bad, 0);
  EXPECT_EQ(share_of("Größe, 長さ, 🙂 and some more").bad, 0);
  const auto latin = share_of(
      "Gr\xf6\xdf"
      "e");
  EXPECT_EQ(latin.bad, 2);
  EXPECT_EQ(latin.first_bad, 2);
  EXPECT_EQ(share_of("cut at its end \xe9\x95").bad, 2);
  EXPECT_EQ(share_of("overlong \xc0\x80 and surrogate \xed\xa0\x80").bad, 5);
}

TEST_F(TextCheckTest, ZeroBytesAreNoText) {
  for (std::size_t place = 0; place < 24; ++place) {
    std::string text(24, 'a');
    text[place] = '\0';
    EXPECT_EQ(share_of(text).bad, 1) << place;
    EXPECT_EQ(share_of(text).first_bad, static_cast<std::int64_t>(place));
  }
}

TEST_F(TextCheckTest, OfALargeFileSamplesAreEnough) {
  // Characters of three bytes, so that pieces begin and end inside of some.
  std::string text;
  while (text.size() <= (std::size_t{100} << 20)) {
    text += "\xe9\x95\xb7";
  }
  const auto clean = share_of(text);
  EXPECT_EQ(clean.looked_at, std::int64_t{64} << 20);
  EXPECT_EQ(clean.bad, 0);
  std::fill(text.end() - 999, text.end(), '\xff');
  EXPECT_EQ(share_of(text).bad, 999);
}

TEST_F(TextCheckTest, OneBadByteInAThousandIsTaken) {
  std::string text = text_;
  text[500] = '\xff';
  EXPECT_EQ(refusal("a.txt", text), "accepted");
  text[700] = '\xff';
  EXPECT_THAT(refusal("a.txt", text),
              AllOf(HasSubstr("0.2 % of its bytes are not, the first at 500"),
                    HasSubstr("iconv -f LATIN1 -t UTF-8 '"), HasSubstr("--any-bytes")));
}

TEST_F(TextCheckTest, TextIsTextWhateverItsName) {
  for (const char* name : {"a", "a.txt", "a.md", "a.log", "a.py", "a.tex", ".csv.txt"}) {
    EXPECT_EQ(refusal(name, text_), "accepted") << name;
  }
  EXPECT_EQ(refusal("bom.txt", "\xef\xbb\xbf" + text_), "accepted");
  EXPECT_EQ(refusal("empty.txt", ""), "accepted") << "its length is another check's";
}

TEST_F(TextCheckTest, ADirectoryNamesTheFirstAndTheNumber) {
  directory_.write("a.txt", text_);
  directory_.write("b.png", text_);
  directory_.write("c.gz", text_);
  directory_.write(".hidden.gz", text_);
  EXPECT_THAT(refusal(directory_.path()),
              AllOf(HasSubstr("holds 2 of 3 files that are no plain text"),
                    HasSubstr("b.png' is a PNG image, no plain text; leave it out")));
}

TEST_F(TextCheckTest, TokenFilesThatAreNoneAreRefused) {
  EXPECT_THAT(
      refusal("notes.bin",
              "And God said, Let there be light: and there was light, and so on."
              "\n"),
      AllOf(HasSubstr("is text, but .bin is for token files"), HasSubstr("notes.bin.txt'")));
  EXPECT_THAT(refusal("pytorch_model.bin", "PK\x03\x04" + text_),
              AllOf(HasSubstr("is a ZIP archive, no token file"), HasSubstr("--any-bytes")));
  std::string tokens;
  for (int token = 0; token < 200; ++token) {
    tokens += static_cast<char>(token);
    tokens += '\x1a';
  }
  EXPECT_EQ(refusal("tokens.bin", tokens), "accepted");
}

TEST_F(TextCheckTest, TokenizingChecksToo) {
  const std::string input = directory_.write("a.csv", text_);
  const auto bytes = tokens::bytes();
  EXPECT_THROW(tokenize(*bytes, {input}, directory_.path("a.bin")), Error);
  EXPECT_FALSE(std::filesystem::exists(directory_.path("a.bin")));
  EXPECT_EQ(tokenize(*bytes, {input}, directory_.path("a.bin"), {.any_bytes = true}).tokens, 1000);
  const std::string cache = directory_.path("cache");
  cached_tokens({input}, "bytes", cache, {.any_bytes = true});
  EXPECT_THROW(cached_tokens({input}, "bytes", cache), Error) << "the tokens are there";
}

TEST_F(TextCheckTest, Fault159_AFileThatIsTruncatedWhileItIsMappedIsNamed) {
  const std::string path = directory_.write("a.txt", std::string(100'000, 'x'));
  const detail::MappedFile mapped(path), other(path);
  mapped.check();
  std::filesystem::resize_file(path, 40'000);
  const auto bytes = mapped.bytes();
  EXPECT_EQ(bytes[39'999], 'x');
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 'x'), 40'000) << "what is gone reads as zeros";
  const auto refused = HasSubstr(
      "a.txt' had 100000 bytes when it was opened and now ends at byte 40000: it was truncated "
      "while it was in use");
  EXPECT_THAT(test::error_of([&] { mapped.check(); }), refused);
  EXPECT_THAT(test::error_of([&] { other.check(); }), refused) << "though nothing was read there";
  std::filesystem::resize_file(path, 100'000);
  EXPECT_THAT(test::error_of([&] { mapped.check(); }), HasSubstr("now ends at byte 100000"));
}

TEST_F(TextCheckTest, Fault159_AFaultElsewhereGoesToTheHandlerThatWasThere) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, [](int) { ::_exit(77); });
        const detail::MappedFile mapped(directory_.write("a.txt", text_));
        ::raise(SIGBUS);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(77), "");
}

TEST_F(TextCheckTest, Fault159_ATextThatIsTruncatedWhileItBecomesTokensIsNamed) {
  const std::string path = directory_.write("a.txt", std::string(3'000'000, 'x') + "\n");
  const auto tokenizer = tokens::bytes();
  bool is_cut = false;
  const auto cut = [&](const TokenizeProgress&) {
    if (!std::exchange(is_cut, true)) {
      std::filesystem::resize_file(path, 1'000);
    }
  };
  EXPECT_THAT(test::error_of([&] {
                tokenize(*tokenizer, {path}, directory_.path("a.bin"), {.progress = cut});
              }),
              HasSubstr("a.txt' had 3000001 bytes when it was opened and now ends at byte 1000"));
  EXPECT_TRUE(is_cut);
  EXPECT_FALSE(std::filesystem::exists(directory_.path("a.bin")));
}

}  // namespace
}  // namespace fsdp::data
