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
    for (const char* name :
         {"empty", "mixed", "used", "used/step-00000007", "pickled", "tokenized"}) {
      std::filesystem::create_directory(directory_.path(name));
    }
    directory_.write("text.bin", sample_text(4000));
    directory_.write("tokens.bin", std::string(4000, '\0'));
    directory_.write("photo", "\x89PNG\r\n\x1a\n" + sample_text(4000));
    directory_.write("text.gz", "\x1f\x8b\x08" + sample_text(4000));
    directory_.write("table.csv", sample_text(4000));
    directory_.write("latin", sample_text(4000) + std::string(10, '\xe9'));
    directory_.write("chat.jsonl", R"({"messages":[{"role":"user","content":"a"}]})");
    directory_.write("mixed/a.txt", sample_text(4000));
    directory_.write("mixed/b.png", sample_text(4000));
    directory_.write("pickled/config.json", "{}");
    directory_.write("pickled/pytorch_model.bin", "PK\x03\x04" + sample_text(4000));
    directory_.write("tokenized/tokenizer.json", "{}");
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
  return laid_over({"train", "--preset", "tiny", "--data", "@text", "--out", ""}, flags);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInputTest,
    ::testing::Values(
        BadInput{"NoCommand", {}, "subcommand"},
        BadInput{"UnknownCommand", {"trian"}, "'trian' is not a command"},
        BadInput{"UnknownFlag", train({"--learning-rate", "1"}), "--learning-rate"},
        BadInput{"MisspeltCommand", {"trian"}, "did you mean train?"},
        BadInput{"MisspeltFlag", train({"--stpes", "3"}), "did you mean --steps?"},
        BadInput{"FlagWithOneDash", train({"-steps", "3"}), "did you mean --steps?"},
        BadInput{"FlagOfAnotherProgram", train({"--learning_rate=1"}), "did you mean --lr?"},
        BadInput{"MisspeltVerb", {"checkpoint", "verfiy", "@x"}, "did you mean verify?"},
        BadInput{"MisspeltFlagOfAVerb",
                 {"checkpoint", "split", "@x", "@y", "--maxsize", "1"},
                 "'--maxsize' is no option of fsdp checkpoint split; did you mean --max-size?"},
        BadInput{"MisspeltFlagOfGenerate",
                 {"generate", "@x", "--promt-tokens", "1"},
                 "did you mean --prompt-tokens?"},
        BadInput{"MisspeltFlagOfTokenize",
                 {"tokenize", "--tokeniser", "bytes", "@text"},
                 "did you mean --tokenizer?"},
        BadInput{"MisspeltFlagOfRun",
                 {"run", "-n", "2", "--thread", "1", "true"},
                 "'--thread' is no option of fsdp run; did you mean --threads?"},
        BadInput{"FlagBeforeItsCommand", {"--steps", "3", "train"}, "options follow their command"},
        BadInput{"DataWithoutItsName", train({"@text"}), "such as --data"},
        BadInput{"TwiceInTrain",
                 {"train", "--steps", "3", "--steps", "4"},
                 "--steps is given 2 times but takes one value"},
        BadInput{"TwiceInRun", {"run", "-n", "2", "--ranks", "3", "true"}, "is given 2 times"},
        BadInput{"TwiceInGenerate",
                 {"generate", "@x", "--seed", "1", "--seed=2"},
                 "--seed is given 2 times"},
        BadInput{"TwiceInTokenize",
                 {"tokenize", "--tokenizer", "bytes", "--tokenizer", "@x", "@text"},
                 "--tokenizer is given 2 times"},
        BadInput{"TwiceInAVerb",
                 {"checkpoint", "split", "@x", "@y", "--max-size", "1", "--max-size", "2"},
                 "--max-size is given 2 times"},
        BadInput{"AUnit", train({"--steps", "1k"}), "'1k' is no whole number: digits alone"},
        BadInput{"AFraction", train({"--steps", "1.5"}), "'1.5' is no whole number"},
        BadInput{"AWordForANumber", train({"--steps", "true"}), "'true' is no whole number"},
        BadInput{"NoOctalNumbers", train({"--steps", "010", "--warmup", "11"}),
                 "--warmup 11 is longer than --steps 10"},
        BadInput{"NegativeSeed", train({"--seed", "-1"}), "'-1' is no whole number from 0 on"},
        BadInput{"SeedBeyondAll", train({"--seed", "18446744073709551616"}),
                 "is beyond what a number can be"},
        BadInput{"RateIsNaN", train({"--lr", "nan"}), "'nan' is no finite number"},
        BadInput{"RateInPercent", train({"--lr", "1%"}), "'1%' is no finite number"},
        BadInput{"EmptyData", train({"--data", ""}), "--data: is empty"},
        BadInput{"EmptySave", train({"--save", ""}), "--save: is empty"},
        BadInput{"BetasOfSgd", train({"--optimizer", "sgd", "--beta1", "0.9"}),
                 "--beta1 decides nothing"},
        BadInput{"EpsOfLion", train({"--optimizer", "lion", "--eps", "1e-8"}),
                 "--eps decides nothing"},
        BadInput{"KeepOfNothing", train({"--keep", "3"}), "without --save DIR no checkpoint"},
        BadInput{"PromptOfNoSample", train({"--prompt", "In ", "--sample", "0"}),
                 "--prompt decides nothing here: --sample 0"},
        BadInput{"LongPrompt", train({"--prompt", std::string(33, 'a')}),
                 "--prompt has 33 tokens, the model sees 32 at once"},
        BadInput{"PromptForTokens", train({"--data", "@tokens.bin", "--prompt", "In "}),
                 "have no tokenizer: --tokenizer PATH names it"},
        BadInput{"BytesOfTokens", train({"--data", "@tokens.bin", "--bytes"}),
                 "--bytes is for text"},
        BadInput{"BytesAndTokenizer", train({"--bytes", "--tokenizer", "@x"}), "excludes"},
        BadInput{"RankZeroOfAdapters", train({"--lora-rank", "0"}), "--lora-rank"},
        BadInput{"HubNameOfAModel",
                 {"train", "--init", "HuggingFaceTB/SmolLM2-135M"},
                 "hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M"},
        BadInput{"HubNameToGenerate",
                 {"generate", "openai-community/gpt2"},
                 "hf download openai-community/gpt2"},
        BadInput{"HubNameOfATokenizer", train({"--tokenizer", "openai-community/gpt2"}),
                 "--tokenizer 'openai-community/gpt2' does not exist"},
        BadInput{"HubNameOfData", train({"--data", "roneneldan/TinyStories"}),
                 "hf download --repo-type dataset roneneldan/TinyStories"},
        BadInput{"PickleToBeginWith",
                 {"train", "--init", "@pickled"},
                 "pytorch_model.bin, a Python pickle"},
        BadInput{"PickleToGenerate", {"generate", "@pickled"}, "a Python pickle"},
        BadInput{
            "PickleToConvert",
            {"checkpoint", "convert", "@pickled/pytorch_model.bin", "@x", "--dtype", "float32"},
            "a Python pickle"},
        BadInput{"PickleAsTokens", train({"--data", "@pickled/pytorch_model.bin"}),
                 "is a ZIP archive"},
        BadInput{"TextAsTokens", train({"--data", "@text.bin"}),
                 "is text, but .bin is for token files"},
        BadInput{"Image", train({"--data", "@photo"}), "is a PNG image, no plain text"},
        BadInput{"Gzip", train({"--data", "@text.gz"}), "is compressed by gzip, no plain text"},
        BadInput{"Table", train({"--data", "@table.csv"}), "is a table with commas"},
        BadInput{"Latin1", train({"--data", "@latin"}), "iconv -f LATIN1 -t UTF-8"},
        BadInput{"MessagesWithoutATemplate", train({"--data", "@chat.jsonl"}),
                 "messages need the chat template of a model"},
        BadInput{"MixedDirectory", train({"--data", "@mixed"}),
                 "holds 1 of 2 files that are no plain text"},
        BadInput{"GzipWithATokenizer", train({"--data", "@text.gz", "--tokenizer", "bytes"}),
                 "is compressed by gzip"},
        BadInput{"GzipToTokenize",
                 {"tokenize", "--tokenizer", "bytes", "--out", "@x.bin", "@text.gz"},
                 "is compressed by gzip"},
        BadInput{"TokensNowhere",
                 {"tokenize", "--tokenizer", "bytes", "--out", "@no/x.bin", "@text"},
                 "there is no directory"},
        BadInput{"LogIsThere", train({"--log", "@text"}), "is there already"},
        BadInput{"SaveIsUsed", train({"--save", "@used"}),
                 "holds 1 checkpoint of an earlier run, up to step 7"},
        BadInput{"NothingWholeToResume", train({"--save", "@used", "--resume"}),
                 "none of 1 checkpoints"},
        BadInput{"OutIsSave", train({"--out", "@run", "--save", "@run"}),
                 "--out and --save are both"},
        BadInput{"OutHasAnotherTokenizer", train({"--out", "@tokenized"}),
                 "holds another model's tokenizer (tokenizer.json)"},
        BadInput{"NoRoom",
                 train({"--vocab", "16777216", "--width", "1048576", "--heads", "1024", "--layers",
                        "1", "--out", "@big"}),
                 "its disk has"},
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
        BadInput{"UnknownDevice", train({"--device", "gpu"}), "must be auto, cpu, cuda, cuda:N"},
        BadInput{"DeviceThatIsNotThere", train({"--device", "cuda"}), "device cuda:"},
        BadInput{"DeviceToGenerate", {"generate", "@x", "--device", "gpu"}, "device is 'gpu'"},
        BadInput{"DeviceToEvaluate",
                 {"eval", "@x", "--data", "@text", "--device", "gpu"},
                 "device is 'gpu'"},
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
        BadInput{"AFlagTwiceAndAMistake", train({"--recompute", "--recompute", "--lerning", "3"}),
                 "'--lerning' is no option of fsdp train"},
        BadInput{"LogNowhere", train({"--log", "@no/run.jsonl"}), "--log"},
        BadInput{"NegativeTemperature",
                 {"generate", "@empty", "--temperature", "-1"},
                 "--temperature: is -1, must be 0 or a positive number (see"},
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

/// What two ranks say that a job starts with a command line each; `$RANK` is 0 or 1 there.
std::string refusal_in_job(const std::string& flags) {
  const TemporaryDirectory directory;
  directory.write("0", sample_text(4000));
  directory.write("1", sample_text(3999) + "!");
  std::string line = "cd '" + directory.path("") + "' && exec '" + fsdp_program() + "'";
  for (const std::string& word :
       laid_over(tiny_training("0", ""), {"--ranks", "2", "--sample", "0"})) {
    line += " '" + word + "'";
  }
  const CommandResult result = run_fsdp({"run", "-n", "2", "sh", "-c", line + " " + flags});
  EXPECT_EQ(result.code, flags.empty() ? 0 : 2) << result.err;
  return result.err;
}

TEST(JobTest, Fault169_RanksOfDifferentRunsAreRefused) {
  refusal_in_job("");
  EXPECT_THAT(refusal_in_job("--weight-decay 0.$RANK"),
              HasSubstr("rank 1: --weight-decay is 0.1 here, but on rank 0 --weight-decay is 0:"));
  EXPECT_THAT(refusal_in_job("--beta2 0.9$RANK"), HasSubstr("--beta2 is 0.91 here"));
  EXPECT_THAT(refusal_in_job("--dropout 0.$RANK"), HasSubstr("--dropout is 0.1 here"));
}

TEST(JobTest, Fault170_RanksThatBeginWithOtherWeightsAreRefused) {
  const TemporaryDirectory directory;
  directory.write("text", sample_text(4000));
  for (const std::string seed : {"0", "1"}) {
    const CommandResult made =
        run_fsdp(laid_over(tiny_training(directory.path("text"), directory.path("w" + seed)),
                           {"--ranks", "1", "--sample", "0", "--seed", seed, "--steps", "1"}));
    ASSERT_EQ(made.code, 0) << made.err;
  }
  const std::string line = "cd '" + directory.path("") + "' && exec '" + fsdp_program() +
                           "' train --init w$RANK --data text --out '' --steps 2 --seq 16 "
                           "--global-batch 2 --sample 0 --bytes --lr +1e-3";
  const CommandResult result = run_fsdp({"run", "-n", "2", "sh", "-c", line});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("a hash of the weights of --init is"));
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
