// SPDX-License-Identifier: Apache-2.0
/// Bad input: exit code 2, one clear line on standard error, nothing on standard output.
#include <gmock/gmock.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct BadInput {
  const char* name;
  std::vector<std::string> arguments;  ///< "@x" is the file x of the test's directory
  const char* says;
};

class BadInputTest : public ::testing::TestWithParam<BadInput> {
 protected:
  BadInputTest() {
    directory_.write("text", sample_text(4000));
    directory_.write("short", "In the beginning");
    directory_.write("odd.bin", "abc");
    directory_.write("big.bin", std::string(4000, '\7'));
    std::filesystem::create_directory(directory_.path("empty"));
    std::filesystem::create_symlink("loop", directory_.path("loop"));
    ::mkfifo(directory_.path("pipe").c_str(), 0600);
  }
  fsdp::test::TemporaryDirectory directory_;
};

TEST_P(BadInputTest, IsOneLineAndExitCodeTwo) {
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& argument : arguments) {
    if (argument.starts_with('@')) {
      argument = directory_.path(argument.substr(1));
    }
  }
  const CommandResult result = run_fsdp(arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr(GetParam().says));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
}

std::vector<std::string> train(const std::vector<std::string>& flags) {
  return std::vector<std::string>{"train", "--preset", "tiny", "--data", "@text", "--out", ""} +
         flags;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInputTest,
    ::testing::Values(
        BadInput{"NoCommand", {}, "subcommand"},
        BadInput{"UnknownCommand", {"trian"}, "'trian' is not a command"},
        BadInput{"UnknownFlag", train({"--learning-rate", "1"}), "--learning-rate"},
        BadInput{"NotANumber", train({"--steps", "many"}), "many"},
        BadInput{"MissingValue", train({"--steps"}), "--steps"},
        BadInput{"ZeroSteps", train({"--steps", "0"}), "--steps is 0"},
        BadInput{"NegativeBatch", train({"--batch", "-1"}), "--batch"},
        BadInput{"ZeroRanks", train({"--ranks", "0"}), "--ranks"},
        BadInput{"UnknownPreset", train({"--preset", "gpt9"}), "no preset 'gpt9'"},
        BadInput{"UnknownOptimizer", train({"--optimizer", "adam"}), "--optimizer"},
        BadInput{"MomentumOfAdamW", train({"--momentum", "0.9"}), "--momentum is for sgd and muon"},
        BadInput{"MomentumOfOne", train({"--optimizer", "sgd", "--momentum", "1"}),
                 "--momentum is 1, must be at least 0 and below 1"},
        BadInput{"UnknownType", train({"--dtype", "int4"}), "--dtype"},
        BadInput{"UnknownTransport", train({"--transport", "pigeon"}), "--transport"},
        BadInput{"TiedAndUntied", train({"--tied", "--untied"}), "--tied excludes --untied"},
        BadInput{"HeadsDoNotDivide", train({"--heads", "3"}), "3 heads do not divide the width 32"},
        BadInput{"NoLayers", train({"--layers", "0"}), "layers is 0"},
        BadInput{"RanksDoNotDivide", train({"--ranks", "3"}),
                 "--global-batch 32 is not divisible by 3 ranks"},
        BadInput{"BatchDoesNotDivide", train({"--batch", "5"}),
                 "--global-batch 32 is not divisible by 2 ranks x --batch 5"},
        BadInput{"BatchOverflowsToZero", train({"--ranks", "4", "--batch", "4611686018427387904"}),
                 "must be at most"},
        BadInput{"AccumulationOverflowsToZero",
                 train({"--ranks", "4", "--accumulate", "4611686018427387904"}), "--accumulate"},
        BadInput{"SequenceOverflows", train({"--seq", "9223372036854775807"}),
                 "context is 9223372036854775807, must be 1 to"},
        BadInput{"EvaluationOverflows", train({"--eval-batches", "9223372036854775807"}),
                 "--eval-batches is 9223372036854775807, must be at most"},
        BadInput{"DataIsAPipe", train({"--data", "@pipe"}), "is not a regular file"},
        BadInput{"DataIsOutOfReach", train({"--data", "@loop"}), "Too many levels"},
        BadInput{"OutIsOutOfReach", train({"--out", "@loop/out"}), "--out"},
        BadInput{"LogIsOutOfReach", train({"--log", "@loop"}), "--log"},
        BadInput{"WarmupTooLong", train({"--steps", "5", "--warmup", "6"}), "--warmup 6"},
        BadInput{"MinAboveMax", train({"--lr", "0.1", "--min-lr", "0.2"}), "--min-lr 0.2"},
        BadInput{"MissingFile", train({"--data", "@nothing"}), "does not exist"},
        BadInput{"EmptyDirectory", train({"--data", "@empty"}), "has no files"},
        BadInput{"TooShortFile", train({"--data", "@short"}), "has 16 tokens"},
        BadInput{"BrokenTokens", train({"--data", "@odd.bin"}), "has 3 bytes, an odd number"},
        BadInput{"TokenOutsideVocabulary", train({"--data", "@big.bin"}),
                 "token 1799 at position 0 is outside the vocabulary of 256"},
        BadInput{"ByteOutsideVocabulary", train({"--vocab", "97"}), "outside the vocabulary of 97"},
        BadInput{"OutIsAFile", train({"--out", "@text"}), "is not a directory"},
        BadInput{"SaveIsAFile", train({"--save", "@text"}), "--save"},
        BadInput{"ResumeFromNowhere", train({"--resume"}), "--resume needs --save"},
        BadInput{"SaveEveryToNowhere", train({"--save-every", "5"}), "--save-every without --save"},
        BadInput{"NegativeKeep", train({"--save", "@empty", "--keep", "-1"}), "--keep is -1"},
        BadInput{"CheckpointWithoutVerb", {"checkpoint"}, "subcommand"},
        BadInput{"CheckpointNowhere", {"checkpoint", "verify", "@no"}, "does not exist"},
        BadInput{"MergeIntoNoFile",
                 {"checkpoint", "merge", "@empty", "@out"},
                 "must end in .safetensors"},
        BadInput{"SplitIntoAFile",
                 {"checkpoint", "split", "@empty", "@x.safetensors"},
                 "name a directory"},
        BadInput{"SplitBySomething",
                 {"checkpoint", "split", "@empty", "@x", "--max-size", "big"},
                 "--max-size is 'big'"},
        BadInput{"ConvertToSomething",
                 {"checkpoint", "convert", "@empty", "@x", "--dtype", "int4"},
                 "--dtype"},
        BadInput{"LogNowhere", train({"--log", "@no/run.jsonl"}), "--log"},
        BadInput{"RunWithoutRanks", {"run", "true"}, "--ranks"},
        BadInput{"RunWithoutProgram", {"run", "-n", "2"}, "no program to run"}),
    [](const auto& tested) { return tested.param.name; });

TEST(RunCommandTest, HandsTheProgramItsOwnFlags) {
  const std::vector<std::string> program = {
      "sh", "-c", "echo $RANK of $WORLD_SIZE: $*", "sh", "-n", "3", "--", "--help"};
  for (const auto& dashes : {std::vector<std::string>{}, std::vector<std::string>{"--"}}) {
    const CommandResult result =
        run_fsdp(std::vector<std::string>{"run", "-n", "2"} + dashes + program);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("0 of 2: -n 3 -- --help\n"));
    EXPECT_THAT(result.out, HasSubstr("[1] 1 of 2: -n 3 -- --help\n"));
  }
  EXPECT_EQ(run_fsdp({"run", "-n", "2", "sh", "-c", "exit $((RANK * 7))"}).code, 7);
}

TEST(HelpTest, ShowsExamplesAndVersion) {
  const CommandResult help = run_fsdp({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  const CommandResult train_help = run_fsdp({"train", "--help"});
  EXPECT_EQ(train_help.code, 0);
  EXPECT_THAT(train_help.out, HasSubstr("--global-batch"));
  EXPECT_THAT(train_help.out, HasSubstr("Examples:"));
  EXPECT_THAT(run_fsdp({"run", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(run_fsdp({"--version"}).out, HasSubstr("fsdp 0."));
}

}  // namespace
}  // namespace fsdp::test
