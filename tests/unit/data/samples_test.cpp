// SPDX-License-Identifier: Apache-2.0
#include "fsdp/data/samples.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::data {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SamplesTest : public ::testing::Test {
 protected:
  SampleCounts make(const std::string& lines) {
    const std::string input = directory_.write("in.jsonl", lines);
    return make_samples(*tokens::bytes(), "", {input}, directory_.path("out"));
  }
  SampleFile file() const { return SampleFile(directory_.path("out")); }
  /// A document's text, what is learnt in upper case.
  static std::string shown(const SampleFile& file, std::int64_t document) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.document(document).tokens));
    std::vector<unsigned char> learned(tokens.size());
    file.read(document, 0, tokens, learned);
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto letter = static_cast<char>(tokens[i]);
      text += learned[i] != 0 ? static_cast<char>(std::toupper(letter)) : letter;
    }
    return text;
  }
  /// Records of texts with these numbers of bytes.
  void make_texts(const std::vector<std::size_t>& lengths, const char* kind) {
    std::string lines;
    for (const std::size_t length : lengths) {
      const std::string text(length, 'x');
      lines += std::string(kind) == "text"
                   ? R"({"text":")" + text + "\"}\n"
                   : R"({"prompt":"x","completion":")" + text.substr(1) + "\"}\n";
    }
    make(lines);
  }
  test::TemporaryDirectory directory_;
};

TEST_F(SamplesTest, TextsAreLearntWholeAndOfPairsTheCompletion) {
  const SampleCounts counts =
      make("{\"text\": \"abc\"}\n\n  \n{\"prompt\":\"ask \",\"completion\":\"tell\",\"id\":7}\r\n");
  EXPECT_EQ(counts.records, 2);
  EXPECT_EQ(counts.tokens, 11);
  EXPECT_EQ(counts.learned, 7);
  EXPECT_EQ(counts.answers, 1);
  const SampleFile made = file();
  EXPECT_EQ(made.documents(), 2);
  EXPECT_EQ(shown(made, 0), "ABC");
  EXPECT_EQ(shown(made, 1), "ask TELL");
  EXPECT_TRUE(made.document(0).is_text);
  EXPECT_EQ(made.document(1).first_learned, 4);
  EXPECT_EQ(made.vocab(), 256);
}

TEST_F(SamplesTest, WhatIsNoRecordIsNamedByItsLine) {
  EXPECT_THAT(error_of([&] { make("{\"text\":\"a\"}\n{\"text\":"); }),
              AllOf(HasSubstr("in.jsonl' line 2"), HasSubstr("no JSON")));
  EXPECT_THAT(error_of([&] { make("[1]"); }), HasSubstr("no object"));
  EXPECT_THAT(
      error_of([&] { make(R"({"instruction":"a","output":"b"})"); }),
      AllOf(HasSubstr("instruction, output"), HasSubstr("Alpaca"), HasSubstr("python3 -c")));
  EXPECT_THAT(error_of([&] { make(R"({"conversations":[]})"); }), HasSubstr("ShareGPT"));
  EXPECT_THAT(error_of([&] { make(R"({"text":"a","messages":[]})"); }), HasSubstr("three ways"));
  EXPECT_THAT(error_of([&] { make(R"({"text":5})"); }), HasSubstr("to be a string"));
  EXPECT_THAT(error_of([&] { make(R"({"text":"a","text":"b"})"); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([&] { make("\n"); }), HasSubstr("has no record"));
  EXPECT_THAT(error_of([&] { make(R"({"messages":[{"role":"user","content":"x"}]})"); }),
              HasSubstr("chat template"));
  EXPECT_FALSE(std::filesystem::exists(directory_.path("out"))) << "all or nothing";
}

TEST_F(SamplesTest, OtherFilesAreRefused) {
  EXPECT_THAT(error_of([&] { SampleFile(directory_.write("short", "FSDPSMP1")); }),
              HasSubstr("no sample file"));
  EXPECT_THAT(error_of([&] { SampleFile(directory_.write("other", std::string(500, 'x'))); }),
              HasSubstr("no sample file"));
  make_texts({5, 5}, "text");
  const auto size = std::filesystem::file_size(directory_.path("out"));
  std::filesystem::resize_file(directory_.path("out"), size - 1);
  EXPECT_THAT(error_of([&] { file(); }), HasSubstr("header tells of"));
}

TEST_F(SamplesTest, EachDocumentIsPackedOnceAndRowsAreFull) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 200; ++i) {
    lengths.push_back(2 + i * 7919 % 63);
  }
  make_texts(lengths, "pair");
  const SampleFile made = file();
  const Packing packing(made, {0, 200}, 64, TooLong::kCut);
  std::multiset<std::int64_t> found;
  std::int64_t places = 0;
  for (std::int64_t row = 0; row < packing.rows(); ++row) {
    std::int64_t sum = 0;
    for (const Packing::Piece& piece : packing.row(row)) {
      EXPECT_EQ(piece.first, 0);
      EXPECT_EQ(piece.places, made.document(piece.document).tokens - 1);
      found.insert(piece.document);
      sum += piece.places;
    }
    EXPECT_LE(sum, 64);
    places += sum;
  }
  EXPECT_EQ(found.size(), 200u);
  EXPECT_EQ(std::set(found.begin(), found.end()).size(), 200u);
  EXPECT_EQ(places, packing.places());
  EXPECT_GT(static_cast<double>(places), 0.95 * 64 * static_cast<double>(packing.rows()));
}

TEST_F(SamplesTest, LongTextsBecomePiecesThatPredictEachTokenOnce) {
  make_texts({25, 9}, "text");
  const Packing packing(file(), {0, 2}, 10, TooLong::kDrop);
  std::set<std::int64_t> predicted;
  for (std::int64_t row = 0; row < packing.rows(); ++row) {
    for (const Packing::Piece& piece : packing.row(row)) {
      for (std::int64_t i = 1; i <= piece.places && piece.document == 0; ++i) {
        EXPECT_TRUE(predicted.insert(piece.first + i).second);
      }
    }
  }
  EXPECT_EQ(predicted.size(), 24u) << "all but the first";
  EXPECT_EQ(packing.cut() + packing.dropped(), 0);
}

TEST_F(SamplesTest, LongConversationsAreCutOrLeftOutAndCounted) {
  // 30 tokens, of which the second is the first that is learnt; and one whose answer comes late.
  make(R"({"prompt":"x","completion":")" + std::string(29, 'y') + "\"}\n" + R"({"prompt":")" +
       std::string(20, 'x') + R"(","completion":"yyyyy"})" + "\n" +
       R"({"prompt":"x","completion":"yy"})" + "\n" + R"({"prompt":"xyz","completion":""})" + "\n");
  const Packing cut(file(), {0, 4}, 10, TooLong::kCut);
  EXPECT_EQ(cut.cut(), 1);
  EXPECT_EQ(cut.dropped(), 1) << "nothing to learn in its first 10 tokens";
  EXPECT_EQ(cut.without_answer(), 1);
  EXPECT_EQ(cut.places(), 10 + 2);
  const Packing dropped(file(), {0, 4}, 10, TooLong::kDrop);
  EXPECT_EQ(dropped.dropped(), 2);
  EXPECT_EQ(dropped.places(), 2);
  EXPECT_THAT(error_of([&] { Packing(file(), {0, 2}, 5, TooLong::kDrop); }),
              AllOf(HasSubstr("none is left"), HasSubstr("2 are longer than 5")));
}

TEST_F(SamplesTest, NamesSayWhatHasRecords) {
  for (const char* name : {"a.jsonl", "b.ndjson", "c.jsonl.gz", "dir/d.jsonl.zst"}) {
    EXPECT_TRUE(has_records(name)) << name;
  }
  for (const char* name : {"a.json", "a.txt", "a.txt.gz", "jsonl", "a.gz"}) {
    EXPECT_FALSE(has_records(name)) << name;
  }
}

}  // namespace
}  // namespace fsdp::data
