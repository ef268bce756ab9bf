// SPDX-License-Identifier: Apache-2.0
/// fsdp tokenize, and training on what it writes or with --tokenizer on the text itself.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/program.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/format/token_file.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "support/temporary_directory.hpp"
#include "unit/tokens/small_tokenizer.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;

class TokenizeTest : public ::testing::Test {
 protected:
  TokenizeTest() {
    const std::vector<Pair> merges = {{"t", "h"}, {"th", "e"}, {" ", "the"},
                                      {" ", "a"}, {" a", "n"}, {" an", "d"}};
    std::filesystem::create_directory(directory_.path("model"));
    auto json = tokenizer_json(merges);
    json["added_tokens"].push_back(added_token(262, "<|end|>"));
    directory_.write("model/tokenizer.json", json.dump());
    directory_.write("model/tokenizer_config.json", R"({"eos_token": "<|end|>"})");
    directory_.write("text.txt", sample_text(20'000));
    tokenizer_ = tokens::load(directory_.path("model"));
  }

  CommandResult run(const std::vector<std::string>& arguments) {
    return run_command(std::vector<std::string>{fsdp_program()} + arguments,
                       {{"OMP_NUM_THREADS", "1"}, {"XDG_CACHE_HOME", directory_.path("cache")}});
  }
  CommandResult tokenize(const std::vector<std::string>& more) {
    return run(std::vector<std::string>{"tokenize", "--tokenizer", directory_.path("model")} +
               more);
  }
  CommandResult train(const std::vector<std::string>& more) {
    CommandResult result =
        run(laid_over(tiny_training(directory_.path("text.txt"), directory_.path("out")), more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  std::vector<std::int64_t> tokens_in(const std::string& path) {
    const auto corpus = data::Corpus::open(path);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(corpus.tokens()));
    corpus.read(0, ids);
    return ids;
  }
  std::vector<double> losses(const std::string& log) {
    std::vector<double> values;
    for (const LogLine& line : read_log(log)) {
      values.push_back(line.loss);
    }
    return values;
  }

  fsdp::test::TemporaryDirectory directory_;
  std::shared_ptr<const tokens::Tokenizer> tokenizer_;
};

TEST_F(TokenizeTest, WritesTheTokensAndWhereTheyComeFrom) {
  const std::string out = directory_.path("text.bin");
  const CommandResult result = tokenize({"--out", out, directory_.path("text.txt")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(tokens_in(out), tokenizer_->encode(sample_text(20'000)));
  const auto info = format::inspect_token_file(out);
  EXPECT_EQ(info.origin.vocab, 263);
  EXPECT_EQ(info.origin.fingerprint, tokenizer_->fingerprint());
  EXPECT_EQ(info.origin.tokenizer, "byte-level BPE (model)");
  EXPECT_THAT(result.out, HasSubstr("tokens of uint16 from 0.0 MB in 1 file"));
  // Only with --force over what is there; nothing else is left behind.
  EXPECT_EQ(tokenize({"--out", out, directory_.path("text.txt")}).code, 2);
  EXPECT_EQ(tokenize({"--force", "--out", out, directory_.path("text.txt")}).code, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 3);
}

TEST_F(TokenizeTest, FilesFollowOneAnotherAndMayBeEnded) {
  std::filesystem::create_directory(directory_.path("notes"));
  directory_.write("notes/b.txt", " the");
  directory_.write("notes/a.txt", "the<|end|>");
  const auto run = [&](const std::vector<std::string>& flags) {
    const std::string out = directory_.path("notes.bin");
    const CommandResult result = tokenize(
        std::vector<std::string>{"--force", "--out", out} + flags +
        std::vector<std::string>{directory_.path("notes"), directory_.path("notes/b.txt")});
    EXPECT_EQ(result.code, 0) << result.err;
    return tokens_in(out);
  };
  EXPECT_THAT(run({"--special"}), ::testing::ElementsAre(257, 262, 258, 258));
  EXPECT_THAT(run({"--special", "--eos"}),
              ::testing::ElementsAre(257, 262, 262, 258, 262, 258, 262));
  EXPECT_EQ(run({}).size(), 10u);
}

TEST_F(TokenizeTest, TrainingOnTheFileAndOnTheTextIsTheSame) {
  const std::string bin = directory_.path("text.bin"), log = directory_.path("run.jsonl");
  ASSERT_EQ(tokenize({"--out", bin, directory_.path("text.txt")}).code, 0);
  const std::vector<std::string> logged = {"--ranks", "2", "--log", log};

  const CommandResult on_file = train(logged + std::vector<std::string>{"--data", bin});
  EXPECT_THAT(on_file.out, HasSubstr("vocabulary 263"));
  EXPECT_THAT(on_file.out, HasSubstr(" | "));  // the sample is numbers
  const auto expected = losses(log);
  ASSERT_EQ(expected.size(), 3u);
  std::filesystem::remove(log);

  const std::vector<std::string> with_tokenizer = {"--tokenizer", directory_.path("model"),
                                                   "--prompt", "the light"};
  const CommandResult decoded =
      train(logged + std::vector<std::string>{"--data", bin} + with_tokenizer);
  EXPECT_THAT(decoded.out, HasSubstr("--- sample ---\nthe light"));
  EXPECT_THAT(decoded.out, HasSubstr("tokens   byte-level BPE (model), 263 ids"));
  EXPECT_EQ(losses(log), expected);
  std::filesystem::remove(log);
  EXPECT_FALSE(std::filesystem::exists(directory_.path("cache")));

  train(logged + with_tokenizer);
  EXPECT_EQ(losses(log), expected);
  // The tokens are kept, and the model has its tokenizer beside it.
  const auto cached = data::Corpus::open(directory_.path("text.bin")).tokens();
  std::int64_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory_.path("cache/fsdp/tokens"))) {
    if (entry.path().extension() == ".bin") {
      EXPECT_EQ(data::Corpus::open(entry.path().string()).tokens(), cached);
      ++files;
    }
  }
  EXPECT_EQ(files, 1);
  EXPECT_EQ(tokens::load(directory_.path("out"))->fingerprint(), tokenizer_->fingerprint());
}

TEST_F(TokenizeTest, WhatDoesNotGoTogetherIsRefused) {
  const std::string bin = directory_.path("bytes.bin"), text = directory_.path("text.txt");
  ASSERT_EQ(run({"tokenize", "--tokenizer", "bytes", "--out", bin, text}).code, 0);
  const auto refusal = [&](const std::vector<std::string>& arguments) {
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.out, ::testing::IsEmpty());
    return result.err;
  };
  const std::string model = directory_.path("model");
  EXPECT_THAT(refusal({"train", "--preset", "tiny", "--data", bin, "--tokenizer", model}),
              HasSubstr("another vocabulary"));
  EXPECT_THAT(refusal({"train", "--preset", "tiny", "--data", text, "--tokenizer", model, "--vocab",
                       "262"}),
              HasSubstr("a vocabulary of 262 (--vocab) does not hold the 263 ids"));
  EXPECT_THAT(refusal({"train", "--data", text, "--tokenizer", directory_.path("no")}),
              HasSubstr("does not exist"));
  EXPECT_THAT(refusal({"tokenize", "--tokenizer", model, "--out", directory_.path("x"), text}),
              HasSubstr("does not end in .bin"));
  EXPECT_THAT(refusal({"tokenize", "--tokenizer", model, text, text}),
              HasSubstr("--out FILE.bin is needed for 2 inputs"));
  EXPECT_THAT(refusal({"tokenize", "--tokenizer", model, "--out", directory_.path("x.bin"), bin}),
              HasSubstr("holds tokens already"));
  EXPECT_THAT(refusal({"tokenize", "--tokenizer", "bytes", "--eos", "--out",
                       directory_.path("x.bin"), text}),
              HasSubstr("no token for the end of a text"));
  EXPECT_FALSE(std::filesystem::exists(directory_.path("x.bin")));
}

TEST_F(TokenizeTest, HelpShowsExamples) {
  const CommandResult help = run({"tokenize", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  EXPECT_THAT(help.out, HasSubstr("--drop-unknown"));
}

}  // namespace
}  // namespace fsdp::test
