// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/corpus.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <limits>

#include "fsdp/base/error.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CorpusTest : public ::testing::Test {
 protected:
  static std::vector<std::int64_t> read(const Corpus& corpus, std::int64_t begin,
                                        std::size_t count) {
    std::vector<std::int64_t> tokens(count);
    corpus.read(begin, tokens);
    return tokens;
  }

  template <class Action>
  static std::string refusal(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  static std::string tokens(std::initializer_list<int> values) {
    std::string bytes;
    for (const int value : values) {
      bytes.push_back(static_cast<char>(value & 0xff));
      bytes.push_back(static_cast<char>(value >> 8));
    }
    return bytes;
  }

  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(CorpusTest, Fault159_AFileThatIsTruncatedMeanwhileIsNamed) {
  const std::string path = directory_.write("a.txt", std::string(10'000, 'x'));
  const auto corpus = Corpus::open(path);
  std::filesystem::resize_file(path, 4'000);
  EXPECT_THAT(read(corpus, 3'999, 1), ElementsAre('x'));
  const std::string text = refusal([&] { read(corpus, 3'990, 20); });
  EXPECT_THAT(text, HasSubstr("a.txt' had 10000 bytes when it was opened and now ends at byte "
                              "4000: it was truncated while it was in use"));
  EXPECT_THAT(refusal([&] { corpus.check_vocabulary(256); }), "accepted") << "bytes of a text";
  EXPECT_THAT(refusal([&] { corpus.check_vocabulary(200); }), HasSubstr("now ends at byte 4000"));
}

TEST_F(CorpusTest, TextIsItsBytes) {
  const auto corpus = Corpus::open(directory_.write("a.txt", "A\xff\n"));
  EXPECT_TRUE(corpus.is_text());
  EXPECT_EQ(corpus.tokens(), 3);
  EXPECT_THAT(read(corpus, 0, 3), ElementsAre(65, 255, 10));
}

TEST_F(CorpusTest, DirectoryIsItsFilesInPathOrder) {
  directory_.write("b.txt", "cd");
  directory_.write("a.txt", "ab");
  directory_.write("e.txt", "");
  directory_.write(".hidden", "zz");
  std::filesystem::create_directory(directory_.path("d"));
  directory_.write("d/x.txt", "ef");
  std::filesystem::create_directory(directory_.path(".git"));
  directory_.write(".git/x", "zz");
  const auto corpus = Corpus::open(directory_.path());
  EXPECT_EQ(corpus.files(), 4);
  EXPECT_THAT(read(corpus, 0, 6), ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(read(corpus, 1, 4), ElementsAre('b', 'c', 'd', 'e'));
}

TEST_F(CorpusTest, TokenFilesOfBothKinds) {
  const auto plain = Corpus::open(directory_.write("plain.bin", tokens({1, 50256, 300})));
  EXPECT_FALSE(plain.is_text());
  EXPECT_THAT(read(plain, 0, 3), ElementsAre(1, 50256, 300));

  std::string header = tokens({20240520 & 0xffff, 20240520 >> 16, 1, 0, 2, 0});
  header.resize(1024, '\0');
  const auto llm_c = Corpus::open(directory_.write("llmc.bin", header + tokens({7, 65535})));
  EXPECT_THAT(read(llm_c, 0, 2), ElementsAre(7, 65535));

  const auto both = Corpus::open(directory_.path());
  EXPECT_THAT(read(both, 0, 5), ElementsAre(7, 65535, 1, 50256, 300));
}

TEST_F(CorpusTest, TokensOutsideTheVocabularyAreNamed) {
  const auto corpus = Corpus::open(directory_.write("x.bin", tokens({1, 255, 256})));
  corpus.check_vocabulary(257);
  EXPECT_THAT(refusal([&] { corpus.check_vocabulary(256); }),
              HasSubstr("token 256 at position 2 is outside the vocabulary of 256"));
  const auto text = Corpus::open(directory_.write("x.txt", "az"));
  text.check_vocabulary(256);
  EXPECT_THAT(refusal([&] { text.check_vocabulary(100); }), HasSubstr("token 122 at position 1"));
}

TEST_F(CorpusTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(refusal([] { Corpus::open("/nowhere/kjv.txt"); }),
              HasSubstr("'/nowhere/kjv.txt' does not exist"));
  EXPECT_THAT(refusal([&] { Corpus::open(directory_.path()); }), HasSubstr("has no files"));
  directory_.write("a.txt", "ab");
  directory_.write("a.bin", "ab");
  EXPECT_THAT(refusal([&] { Corpus::open(directory_.path()); }),
              HasSubstr("1 token files (.bin) and 1 others"));
  const auto corpus = Corpus::open(directory_.path("a.txt"));
  EXPECT_THAT(refusal([&] { read(corpus, 1, 2); }), HasSubstr("there are 2"));
  EXPECT_THAT(refusal([&] { Corpus::open("/dev/null"); }), HasSubstr("not a regular file"));
}

TEST_F(CorpusTest, SplitPutsTheEndAside) {
  const auto corpus = Corpus::open(directory_.write("a.txt", std::string(1000, 'x')));
  const Split parts = split(corpus, 10, 0.05);
  EXPECT_EQ(parts.train.begin, 0);
  EXPECT_EQ(parts.train.end, 950);
  EXPECT_EQ(parts.validation.end, 1000);
}

TEST_F(CorpusTest, SplitLeavesASequenceOnBothSides) {
  const auto corpus = Corpus::open(directory_.write("a.txt", std::string(22, 'x')));
  const Split parts = split(corpus, 10, 0.05);
  EXPECT_EQ(parts.train.size(), 11);
  EXPECT_EQ(parts.validation.size(), 11);
  EXPECT_THAT(refusal([&] { split(corpus, 11, 0.05); }),
              HasSubstr("has 22 tokens; training and validation take more than 11 each"));
  const auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal([&] { split(corpus, most, 0.05); }), HasSubstr("has 22 tokens"));
}

}  // namespace
}  // namespace fsdp::data
