// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <filesystem>

#include "fsdp/tokens/tokenizer.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"
#include "tokens/loaders.hpp"
#include "unit/tokens/small_tokenizer.hpp"

namespace fsdp::tokens {
namespace {

using test::added_token;
using test::error_of;
using test::Pair;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<Pair> kMerges = {{"t", "h"}, {"th", "e"}};

class LoadTest : public ::testing::Test {
 protected:
  void write_gpt2(const std::string& vocabulary = "vocab.json",
                  const std::string& merges = "merges.txt") {
    auto tokens = test::vocabulary(kMerges);
    tokens["<|endoftext|>"] = 258;
    directory_.write(vocabulary, tokens.dump());
    directory_.write(merges, "#version: 0.2\nt h\r\nth e\n\n");
  }
  std::string refusal(const nlohmann::json& json) {
    const std::string path = directory_.write("tokenizer.json", json.dump());
    return error_of([&] { load(path); });
  }
  test::TemporaryDirectory directory_;
};

TEST_F(LoadTest, Gpt2sFilesUnderBothPairsOfNamesAndFromEitherFile) {
  write_gpt2();
  test::TemporaryDirectory other;
  std::filesystem::copy(directory_.path("vocab.json"), other.path("encoder.json"));
  std::filesystem::copy(directory_.path("merges.txt"), other.path("vocab.bpe"));
  for (const std::string& path :
       {directory_.path(), directory_.path("vocab.json"), directory_.path("merges.txt"),
        other.path(), other.path("encoder.json"), other.path("vocab.bpe")}) {
    SCOPED_TRACE(path);
    const auto tokenizer = load(path);
    EXPECT_THAT(tokenizer->encode("the<|endoftext|>", {.special_tokens = true}),
                ElementsAre(257, 258));
    EXPECT_EQ(tokenizer->bos(), 258);
    EXPECT_EQ(tokenizer->eos(), 258);
    EXPECT_EQ(files_of(path).size(), 2u);
  }
  EXPECT_EQ(load(directory_.path())->fingerprint(), load(other.path())->fingerprint());
}

TEST_F(LoadTest, TokenizerJsonGoesBeforeOtherFiles) {
  write_gpt2();
  directory_.write("tokenizer.json", test::tokenizer_json({}).dump());
  EXPECT_EQ(load(directory_.path())->vocab_size(), 256);
  EXPECT_EQ(load(directory_.path("vocab.json"))->vocab_size(), 259);
  EXPECT_THAT(files_of(directory_.path()), ElementsAre(directory_.path("tokenizer.json")));
}

TEST_F(LoadTest, ATokenMayBeCalledModel) {
  auto tokens = test::vocabulary(kMerges);
  tokens["model"] = 258;
  directory_.write("merges.txt", "t h\n");
  EXPECT_EQ(load(directory_.write("vocab.json", tokens.dump()))->vocab_size(), 259);
}

TEST_F(LoadTest, TheConfigurationBesideNamesTheEnds) {
  auto json = test::tokenizer_json(kMerges);
  json["added_tokens"] = {added_token(258, "<a>"), added_token(259, "<b>")};
  directory_.write("tokenizer.json", json.dump());
  EXPECT_FALSE(load(directory_.path())->bos());
  directory_.write("tokenizer_config.json",
                   R"({"bos_token": {"content": "<a>", "lstrip": false}, "eos_token": "<b>"})");
  EXPECT_EQ(load(directory_.path())->bos(), 258);
  EXPECT_EQ(load(directory_.path())->eos(), 259);
  EXPECT_EQ(files_of(directory_.path()).size(), 2u);
  directory_.write("tokenizer_config.json", R"({"eos_token": "<c>"})");
  EXPECT_THAT(error_of([&] { load(directory_.path()); }), HasSubstr("has no token '<c>'"));
}

TEST_F(LoadTest, Gpt2sFilesOfAnotherTokenizerAreRefused) {
  write_gpt2();
  directory_.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2TokenizerFast"})");
  load(directory_.path());
  directory_.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  EXPECT_THAT(error_of([&] { load(directory_.path()); }),
              HasSubstr("says that the tokenizer is a Qwen2Tokenizer"));
}

TEST_F(LoadTest, MergesMayBePairs) {
  auto json = test::tokenizer_json(kMerges);
  json["model"]["merges"] = nlohmann::json::parse(R"([["t", "h"], ["th", "e"]])");
  directory_.write("tokenizer.json", json.dump());
  EXPECT_THAT(load(directory_.path())->encode("the"), ElementsAre(257));
}

TEST_F(LoadTest, BytesIsAWordAndNoPath) {
  EXPECT_EQ(load("bytes")->name(), "bytes");
  EXPECT_THAT(files_of("bytes"), IsEmpty());
}

TEST_F(LoadTest, PathsThatHoldNoTokenizerAreRefused) {
  EXPECT_THAT(error_of([] { load("/nowhere/at/all"); }), HasSubstr("does not exist"));
  EXPECT_THAT(error_of([&] { load(directory_.path()); }), HasSubstr("holds no tokenizer"));
  EXPECT_THAT(error_of([&] { load(directory_.write("x.txt", "In the beginning")); }),
              HasSubstr("is no tokenizer that is known"));
  EXPECT_THAT(error_of([&] { load(directory_.write("tokenizer.model", "\n\x0e\n\x05<unk>")); }),
              HasSubstr("a sentencepiece model, which is not supported"));
  EXPECT_THAT(error_of([&] { load(directory_.write("vocab.json", "{\"a\": 1}")); }),
              HasSubstr("the other is not beside it"));
  EXPECT_THAT(error_of([] { load("/dev/null"); }), HasSubstr("is not a regular file"));
}

TEST_F(LoadTest, BrokenVocabulariesAndMergesAreNamed) {
  const auto broken = [&](const std::string& vocabulary, const std::string& merges) {
    return error_of([&] { detail::parse_gpt2_files("v", vocabulary, "m", merges); });
  };
  EXPECT_THAT(broken("{\"a\": 0, \"b\": 0}", ""), HasSubstr("the id 0 belongs to the token 'a'"));
  EXPECT_THAT(broken("{\"a\": 0, \"a\": 1}", ""), HasSubstr("has the name 'a' twice"));
  EXPECT_THAT(broken("{\"a\": -1}", ""), HasSubstr("has the id -1"));
  EXPECT_THAT(broken("{\"a\": 99999999999}", ""), HasSubstr("has the id 99999999999"));
  EXPECT_THAT(broken("{\"a\": \"b\"}", ""), HasSubstr("expected an integer"));
  EXPECT_THAT(broken("{\"a\": 0", ""), HasSubstr("is not JSON: byte"));
  EXPECT_THAT(broken("[1]", ""), HasSubstr("is JSON but not an object"));
  EXPECT_THAT(broken("{\"a\": 0}", "ab"), HasSubstr("merge 0 is 'ab', expected two tokens"));
  EXPECT_THAT(broken("{\"a\": 0}", "a b"), HasSubstr("the vocabulary lacks the second"));
  EXPECT_THAT(broken("{\"a\": 0, \"b\": 1}", "a b"), HasSubstr("lacks the two together"));
}

using Change = std::function<void(nlohmann::json&)>;
struct Refused {
  const char* name;
  Change change;
  const char* says;
};

class RefusedTest : public LoadTest, public ::testing::WithParamInterface<Refused> {};

TEST_P(RefusedTest, ByName) {
  auto json = test::tokenizer_json(kMerges);
  ASSERT_EQ(refusal(json), "no error");
  GetParam().change(json);
  EXPECT_THAT(refusal(json), HasSubstr(GetParam().says));
}

/// Sets a member of the file; `pointer` as in RFC 6901.
Change set(const char* pointer, nlohmann::json value) {
  return [=](nlohmann::json& json) { json[nlohmann::json::json_pointer(pointer)] = value; };
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedTest,
    ::testing::Values(
        Refused{"Normalizer", set("/normalizer", {{"type", "NFKC"}}),
                "normalizer of type 'NFKC' is not supported"},
        Refused{"ReplaceByPattern",
                set("/normalizer",
                    {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", "_"}}),
                "normalizer.pattern.Regex"},
        Refused{"Truncation", set("/truncation", {{"max_length", 5}}), "truncation"},
        Refused{"Padding", set("/padding", {{"strategy", "Fixed"}}), "padding"},
        Refused{"UnknownMember", set("/flavour", 1), "the file.flavour"},
        Refused{"WordPiece", set("/model/type", "WordPiece"), "model of type 'WordPiece'"},
        Refused{"Dropout", set("/model/dropout", 0.1), "model.dropout"},
        Refused{"Suffix", set("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix"},
        Refused{"Prefix", set("/model/continuing_subword_prefix", "##"),
                "model.continuing_subword_prefix"},
        Refused{"UnknownModelMember", set("/model/magic", true), "model.magic"},
        Refused{"UnknownTokenAndMissingBytes",
                [](nlohmann::json& json) {
                  json["model"]["vocab"].erase("q");
                  json["model"]["unk_token"] = "<unk>";
                },
                "model.unk_token"},
        Refused{"Metaspace", set("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}),
                "pre_tokenizer.replacement"},
        Refused{"PrefixSpace", set("/pre_tokenizer/add_prefix_space", true), "add_prefix_space"},
        Refused{"NoByteLevel", set("/pre_tokenizer", nullptr), "no part of type 'ByteLevel'"},
        Refused{"AfterByteLevel",
                [](nlohmann::json& json) {
                  const auto byte_level = json["pre_tokenizer"];
                  json["pre_tokenizer"] = {{"type", "Sequence"},
                                           {"pretokenizers", {byte_level, {{"type", "Digits"}}}}};
                },
                "pre_tokenizer.pretokenizers[1] of type 'Digits' after one of type 'ByteLevel'"},
        Refused{"SplitThatDrops",
                set("/pre_tokenizer", {{"type", "Split"},
                                       {"pattern", {{"Regex", "a"}}},
                                       {"behavior", "Removed"},
                                       {"invert", false}}),
                "behavior 'Removed'"},
        Refused{"SplitInverted",
                set("/pre_tokenizer", {{"type", "Split"},
                                       {"pattern", {{"Regex", "a"}}},
                                       {"behavior", "Isolated"},
                                       {"invert", true}}),
                "pre_tokenizer.invert"},
        Refused{"SplitByText",
                set("/pre_tokenizer",
                    {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}}),
                "pattern.String"},
        Refused{"Pattern",
                set("/pre_tokenizer",
                    {{"type", "Split"}, {"pattern", {{"Regex", "\\w"}}}, {"behavior", "Isolated"}}),
                "'\\w'"},
        Refused{"PostProcessor", set("/post_processor", {{"type", "BertProcessing"}}),
                "post_processor of type 'BertProcessing'"},
        Refused{"Decoder", set("/decoder", {{"type", "WordPiece"}}), "decoder of type 'WordPiece'"},
        Refused{"AddedTokenStrips",
                [](nlohmann::json& json) {
                  auto token = added_token(258, "<mask>");
                  token["lstrip"] = true;
                  json["added_tokens"].push_back(token);
                },
                "added_tokens[0].lstrip"},
        Refused{"AddedTokenTakesAnId",
                [](nlohmann::json& json) { json["added_tokens"].push_back(added_token(5, "<x>")); },
                "has the id 5, which belongs to"},
        Refused{"EmptyAddedToken",
                [](nlohmann::json& json) { json["added_tokens"].push_back(added_token(258, "")); },
                "has no content"}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(LoadTest, WithATokenForEveryByteNothingIsUnknown) {
  auto json = test::tokenizer_json(kMerges);
  json["model"]["unk_token"] = "<unk>";
  json["model"]["fuse_unk"] = true;
  EXPECT_EQ(refusal(json), "no error");
}

TEST_F(LoadTest, TiktokensLinesAreBase64AndRanks) {
  EXPECT_TRUE(detail::looks_like_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_FALSE(detail::looks_like_tiktoken("IQ= 0"));
  EXPECT_FALSE(detail::looks_like_tiktoken("IQ==0"));
  EXPECT_FALSE(detail::looks_like_tiktoken("I?== 0"));
  EXPECT_THAT(error_of([&] { load(directory_.write("a.tiktoken", "IQ== 0\nIg== 1\n")); }),
              HasSubstr("holds 2 ranks, which is none of the known encodings"));
  EXPECT_THAT(error_of([&] { load(directory_.write("a.tiktoken", "IQ== 0\nIg==\n")); }),
              HasSubstr("line 2 is 'Ig=='"));
}

}  // namespace
}  // namespace fsdp::tokens
