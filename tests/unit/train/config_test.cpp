// SPDX-License-Identifier: Apache-2.0
#include "train/config.hpp"

#include <gmock/gmock.h>

#include "fsdp/base/error.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

class TrainConfigTest : public ::testing::Test {
 protected:
  TrainConfigTest() {
    config_.data = {{.paths = {directory_.write("a.txt", std::string(1000, 'x'))}}};
    config_.out = directory_.path("out");
  }
  std::string refusal(int ranks = 2) const {
    try {
      check(config_, ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.text();
    }
    return "accepted";
  }
  fsdp::test::TemporaryDirectory directory_;
  TrainConfig config_;
};

TEST_F(TrainConfigTest, TheDefaultsFitSeveralNumbersOfRanks) {
  for (const int ranks : {1, 2, 4, 8, 32}) {
    EXPECT_EQ(refusal(ranks), "accepted") << ranks;
  }
}

TEST_F(TrainConfigTest, Fault156_ACheckLeavesNothingBehind) {
  config_.out = directory_.path("new/out");
  config_.save = directory_.path("new/run");
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_FALSE(std::filesystem::exists(directory_.path("new")));
  config_.data = {{.paths = {"/nowhere"}}};
  EXPECT_THAT(refusal(), HasSubstr("'/nowhere' does not exist"));
  EXPECT_FALSE(std::filesystem::exists(directory_.path("new"))) << "an empty directory for nothing";
}

TEST_F(TrainConfigTest, ADirectoryThatIsNotThereYetMustBePossible) {
  config_.out = config_.data.front().paths.front() + "/out";
  EXPECT_THAT(refusal(), HasSubstr("is not a directory that can be written"));
  config_.out = directory_.path("new");
  config_.save = directory_.path("other/../new/");
  EXPECT_THAT(refusal(), HasSubstr("--out and --save are both"));
}

TEST_F(TrainConfigTest, BatchesMustDivide) {
  EXPECT_THAT(refusal(3), HasSubstr("--global-batch 32 is not divisible by 3 ranks"));
  config_.batch = 5;
  EXPECT_THAT(refusal(2), HasSubstr("32 is not divisible by 2 ranks x --batch 5"));
  config_.batch = 4;
  EXPECT_EQ(refusal(2), "accepted");
}

TEST_F(TrainConfigTest, MicroStepsAndBatchesAreOneThing) {
  config_.accumulate = 4;
  EXPECT_EQ(refusal(2), "accepted");
  EXPECT_EQ(config_.effective_batch(2), 4);
  EXPECT_THAT(refusal(3), HasSubstr("32 is not divisible by 3 ranks x --accumulate 4"));
  config_.batch = 2;
  EXPECT_THAT(refusal(2), HasSubstr("32 is not 2 ranks x --batch 2 x --accumulate 4"));
}

TEST_F(TrainConfigTest, SenselessShardingIsRefused) {
  config_.strategy = parse_strategy("hybrid");
  EXPECT_THAT(refusal(4), HasSubstr("--strategy hybrid needs --shard N"));
  config_.shard = 3;
  EXPECT_THAT(refusal(4), HasSubstr("--shard 3 does not divide 4 ranks"));
  config_.shard = 2;
  EXPECT_EQ(refusal(4), "accepted");
  config_.transport = "c10d";
  EXPECT_THAT(refusal(4), HasSubstr("--transport c10d does not have"));
  config_.transport = "auto";
  config_.strategy = parse_strategy("full-shard");
  EXPECT_THAT(refusal(4), HasSubstr("--shard 2 is for the strategies hybrid"));
  config_.shard = 0;
  config_.strategy = parse_strategy("replicate");
  config_.keep_root = true;
  EXPECT_THAT(refusal(4), HasSubstr("nothing is gathered"));
}

TEST_F(TrainConfigTest, SenselessTypesAndDeferralsAreRefused) {
  config_.param_dtype = parse_travel_type("bf16");
  config_.dtype = WeightType::kFloat64;
  EXPECT_THAT(refusal(), HasSubstr("--dtype is float64"));
  config_.dtype = WeightType::kFloat32;
  EXPECT_EQ(refusal(), "accepted");
  config_.micro_step_sync = parse_deferral("all");
  EXPECT_THAT(refusal(), HasSubstr("a step of one micro-step defers nothing"));
  config_.accumulate = 2;
  EXPECT_EQ(refusal(), "accepted");
  config_.micro_step_sync = parse_deferral("replicas");
  EXPECT_THAT(refusal(), HasSubstr("has no replicas of its own"));
  EXPECT_THROW(parse_strategy("zero-infinity"), Error);
  EXPECT_THROW(parse_travel_type("int4"), Error);
  EXPECT_THROW(parse_deferral("later"), Error);
}

TEST_F(TrainConfigTest, AllProblemsAreNamedInOneLine) {
  config_.steps = 0;
  config_.lr = -1;
  std::get<models::GPTConfig>(config_.model).heads = 3;
  config_.transport = "pigeon";
  const std::string text = refusal();
  EXPECT_THAT(text, HasSubstr("--steps is 0"));
  EXPECT_THAT(text, HasSubstr("--lr is -1"));
  EXPECT_THAT(text, HasSubstr("3 heads do not divide the width 128"));
  EXPECT_THAT(text, HasSubstr("'pigeon'"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(TrainConfigTest, DataMustExistAndSuffice) {
  config_.data = {{.paths = {"/nowhere"}}};
  EXPECT_THAT(refusal(), HasSubstr("'/nowhere' does not exist"));
  config_.data = {{.paths = {directory_.write("short.txt", "short")}}};
  EXPECT_THAT(refusal(), HasSubstr("has 5 tokens"));
  config_.data = {{.paths = {directory_.write("t.bin", std::string(2000, '\7'))}}};
  EXPECT_THAT(refusal(), HasSubstr("token 1799 at position 0 is outside the vocabulary of 256"));
}

TEST_F(TrainConfigTest, DataMustBeText) {
  config_.data = {{.paths = {directory_.write("a.csv", std::string(1000, 'x'))}}};
  EXPECT_THAT(refusal(), HasSubstr("is a table with commas, no plain text"));
  config_.any_bytes = true;
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(TrainConfigTest, WhatAnEarlierRunLeftIsNotWrittenOver) {
  const auto refused = [&] {
    try {
      check_earlier_run(config_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.text();
    }
    return std::string("accepted");
  };
  config_.save = directory_.path("run");
  EXPECT_EQ(refused(), "accepted") << "it is not there yet";
  std::filesystem::create_directory(config_.save);
  std::filesystem::create_directory(config_.save + "/.step-00000004.partial-1");
  EXPECT_EQ(refused(), "accepted") << "a save that did not end";
  config_.log = directory_.write("log", "");
  EXPECT_EQ(refused(), "accepted") << "an empty log";
  config_.log = directory_.write("log", "{}\n");
  EXPECT_THAT(refused(), HasSubstr("is there already"));
  config_.resume = true;
  EXPECT_THAT(refused(), HasSubstr("none that belongs to the run in --save"));
  config_.log = "";
  EXPECT_EQ(refused(), "accepted");
  std::filesystem::create_directory(config_.save + "/step-00000004");
  EXPECT_THAT(refused(), HasSubstr("none of 1 checkpoints"));
  config_.resume = false;
  EXPECT_THAT(refused(), HasSubstr("holds 1 checkpoint of an earlier run, up to step 4"));
  // What cannot be looked at is not taken for empty.
  config_.save = directory_.path("loop");
  std::filesystem::create_symlink(config_.save, config_.save);
  EXPECT_THAT(refused(), HasSubstr("Too many levels"));
  config_.resume = true;
  EXPECT_THAT(refused(), HasSubstr("Too many levels"));
}

TEST_F(TrainConfigTest, TheModelsDirectoryHoldsNothingThatWouldBeReadInItsPlace) {
  std::filesystem::create_directory(config_.out);
  directory_.write("out/model.safetensors", "an earlier run's, which is written over");
  EXPECT_EQ(refusal(), "accepted");
  directory_.write("out/vocab.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("holds another model's tokenizer (vocab.json)"));
  std::filesystem::remove(config_.out + "/vocab.json");
  directory_.write("out/model.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("holds model.safetensors.index.json, whose weights"));
  std::filesystem::remove(config_.out + "/model.safetensors.index.json");
  config_.save = config_.out;
  EXPECT_THAT(refusal(), HasSubstr("--out and --save are both"));
}

TEST_F(TrainConfigTest, RoomForOneCheckpointIsNeeded) {
  auto& model = std::get<models::GPTConfig>(config_.model);
  model.vocab = 1 << 24;
  model.width = 1 << 20;
  EXPECT_THAT(refusal(), HasSubstr("its disk has"));
  config_.out = "";
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(TrainConfigTest, PlacesForOutputMustBeUsable) {
  config_.out = config_.data.front().paths.front();
  EXPECT_THAT(refusal(), HasSubstr("is not a directory"));
  config_.out = "";
  config_.log = directory_.path("no/such/run.jsonl");
  EXPECT_THAT(refusal(), HasSubstr("--log"));
  config_.log = directory_.path("run.jsonl");
  EXPECT_EQ(refusal(), "accepted");
  config_.log = directory_.path();
  EXPECT_THAT(refusal(), HasSubstr("--log"));
}

TEST_F(TrainConfigTest, DefaultsFollowOtherFlags) {
  config_.steps = 1000;
  config_.lr = 2e-3;
  EXPECT_DOUBLE_EQ(config_.effective_min_lr(), 2e-4);
  EXPECT_EQ(config_.effective_warmup(), 50);
  EXPECT_EQ(config_.effective_batch(2), 16);
}

}  // namespace
}  // namespace fsdp::train
