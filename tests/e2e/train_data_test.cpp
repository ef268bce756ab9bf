// SPDX-License-Identifier: Apache-2.0
/// Data as people have it, and runs as they steer them: records, compressed files, several sources,
/// epochs, schedules, a file of options, a run without steps, event files.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainDataTest : public ::testing::Test {
 protected:
  TrainDataTest() { directory_.write("a.txt", sample_text(6000)); }
  std::string at(const std::string& name) const { return directory_.path(name); }

  CommandResult run(const std::vector<std::string>& flags) const {
    return run_command(std::vector<std::string>{fsdp_program()} + flags,
                       {{"OMP_NUM_THREADS", "1"}, {"XDG_CACHE_HOME", at("cache")}});
  }
  /// Trains a tiny model on `data`; what it printed.
  std::string train(const std::vector<std::string>& flags) const {
    const CommandResult result =
        run(laid_over({"train", "--preset", "tiny", "--out", "", "--global-batch", "4", "--steps",
                       "4", "--sample", "0", "--ranks", "1"},
                      flags));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }
  std::string refusal(const std::vector<std::string>& flags) const {
    const CommandResult result = run(std::vector<std::string>{"train", "--preset", "tiny"} + flags);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  }
  /// Prompts and completions of some lengths.
  std::string write_pairs(const std::string& name, int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      const std::string word(1 + static_cast<std::size_t>(i * 7 % 20),
                             static_cast<char>('a' + i % 26));
      lines += R"({"prompt":"say )" + word + R"(: ","completion":")" + word + word + "\"}\n";
    }
    return directory_.write(name, lines);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(TrainDataTest, RecordsTrainAlikeOnAnyNumberOfRanksAndAfterAResume) {
  const std::string data = write_pairs("pairs.jsonl", 80);
  const auto log_of = [&](const std::string& name, const std::vector<std::string>& flags) {
    const std::string log = at(name + ".log");
    const std::string out = train(laid_over(
        {"--data", data, "--steps", "12", "--lr", "1e-2", "--log", log, "--eval-every", "6"},
        flags));
    EXPECT_THAT(out, AllOf(HasSubstr("76 documents in"), HasSubstr("tokens are learnt"))) << out;
    return read_log(log);
  };
  const auto one = log_of("one", {"--batch", "4"});
  const auto two = log_of("two", {"--ranks", "2", "--batch", "1"});
  ASSERT_EQ(one.size(), 12u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i].loss, one[i].loss, 1e-4 * one[i].loss) << "rows count by their answers";
    EXPECT_NEAR(two[i].grad_norm, one[i].grad_norm, 1e-3 * one[i].grad_norm);
  }
  EXPECT_LT(one.back().loss, one.front().loss);
  log_of("first", {"--save", at("run"), "--steps", "6", "--warmup", "0", "--min-lr", "1e-2"});
  const auto whole = log_of("whole", {"--warmup", "0", "--min-lr", "1e-2"});
  const auto rest =
      log_of("rest", {"--save", at("run"), "--resume", "--warmup", "0", "--min-lr", "1e-2"});
  ASSERT_EQ(rest.size(), 6u);
  EXPECT_EQ(rest.front().step, 7);
  EXPECT_NEAR(rest.back().loss, whole.back().loss, 1e-6) << "the same rows";
}

TEST_F(TrainDataTest, SourcesOfAllKindsGoTogether) {
  const std::string pairs = write_pairs("pairs.jsonl", 40);
  ASSERT_EQ(run_command({"python3", "-c",
                         "import gzip, sys; gzip.open(sys.argv[2], 'wb').write(open(sys.argv[1], "
                         "'rb').read())",
                         at("a.txt"), at("a.txt.gz")})
                .code,
            0);
  const std::string out = train({"--data", at("a*.txt"), "--data", pairs, "--data", at("a.txt.gz"),
                                 "--data-weights", "1,3,0.5", "--val-data", at("a.txt")});
  EXPECT_THAT(out,
              AllOf(HasSubstr("a*.txt: 6,000 bytes to learn from"), HasSubstr("40 documents in"),
                    HasSubstr("weight 3"), HasSubstr("a.txt: 6,000 bytes to validate")))
      << out;
  EXPECT_THAT(refusal({"--data", at("b*.txt")}), HasSubstr("no file fits this pattern"));
  EXPECT_THAT(refusal({"--data", at("a.txt"), "--data-weights", "1,2"}),
              HasSubstr("2 numbers for 1"));
  directory_.write("broken.txt.gz", "no gzip");
  EXPECT_THAT(refusal({"--data", at("broken.txt.gz")}), HasSubstr("cannot be decompressed"));
  directory_.write("bad.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n");
  EXPECT_THAT(refusal({"--data", at("bad.jsonl")}),
              AllOf(HasSubstr("bad.jsonl' line 2"), HasSubstr("txt")));
}

TEST_F(TrainDataTest, EpochsBecomeSteps) {
  // 6000 bytes of which a twentieth is kept aside, in windows of 32 (tiny's context).
  const CommandResult result =
      run({"train", "--preset", "tiny", "--out", "", "--sample", "0", "--ranks", "1", "--data",
           at("a.txt"), "--epochs", "0.5", "--global-batch", "8"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string& out = result.out;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(out, found, std::regex("train    ([0-9]+) steps"))) << out;
  const double rows = std::ceil((5700 - 1) / 32.0);
  EXPECT_EQ(std::stod(found[1]), std::ceil(0.5 * rows / 8));
  EXPECT_THAT(refusal({"--data", at("a.txt"), "--epochs", "1", "--steps", "5"}),
              HasSubstr("excludes"));
}

TEST_F(TrainDataTest, ADryRunDoesAllButTrain) {
  const std::string out =
      train({"--data", at("a.txt"), "--out", at("out"), "--save", at("run"), "--log", at("log"),
             "--tensorboard", at("events"), "--dry-run", "--ranks", "2"});
  EXPECT_THAT(out, AllOf(HasSubstr("promise"), HasSubstr("dry run")));
  EXPECT_THAT(out, Not(HasSubstr("\nstep ")));
  for (const char* name : {"out", "run", "log", "events"}) {
    EXPECT_FALSE(fs::exists(at(name))) << name;
  }
}

TEST_F(TrainDataTest, OptionsComeFromAFileToo) {
  const std::string config = directory_.write(
      "run.toml", "lr = 0.02  # high\nschedule = \"constant\"\n\n[train]\ndata = [\"" +
                      at("a.txt") + "\"]\nwarmup = 0\nsteps = 3\ndecay_all = true\n");
  const std::string out = at("log");
  train({"--config", config, "--log", out, "--steps", "2"});
  std::ifstream file(out);
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "the command line goes first";
  EXPECT_THAT(log, AllOf(HasSubstr("\"lr\":0.02"), HasSubstr("wait_s")));
  directory_.write("run.toml", "lr = 0.02\nlearning-rate = 1\n");
  EXPECT_THAT(refusal({"--config", config}),
              AllOf(HasSubstr("run.toml' line 2"), HasSubstr("--lr")));
  directory_.write("run.toml", "lr = \n");
  EXPECT_THAT(refusal({"--config", config}), HasSubstr("run.toml' line 1"));
  directory_.write("run.toml", "dry-run = 3\n");
  EXPECT_THAT(refusal({"--config", config}), HasSubstr("true or false"));
}

TEST_F(TrainDataTest, KeepBestKeepsTheBest) {
  // A rate that spoils what was learnt.
  const std::string out = train({"--data", at("a.txt"), "--steps", "40", "--eval-every", "5",
                                 "--lr", "0.05", "--min-lr", "0.05", "--keep-best", "--out",
                                 at("best"), "--log", at("log"), "--eval-batches", "100"});
  double best = INFINITY;
  for (const LogLine& line : read_log(at("log"))) {
    best = std::isnan(line.validation_loss) ? best : std::min(best, line.validation_loss);
  }
  const CommandResult judged =
      run({"train", "--init",         at("best"), "--data",         at("a.txt"), "--seq",
           "32",    "--steps",        "1",        "--out",          "",          "--sample",
           "0",     "--global-batch", "4",        "--eval-batches", "100",       "--ranks",
           "1",     "--bytes"});
  ASSERT_EQ(judged.code, 0) << judged.err;
  const auto place = judged.out.find("before   validation loss ");
  ASSERT_NE(place, std::string::npos) << judged.out;
  EXPECT_NEAR(std::stod(judged.out.substr(place + 25)), best, 2e-3);
}

TEST_F(TrainDataTest, NoMoreThanSomeHours) {
  const std::string out = train({"--data", at("a.txt"), "--steps", "1000000", "--max-hours",
                                 "0.0003", "--out", at("model"), "--ranks", "2"});
  EXPECT_THAT(out, HasSubstr("have passed"));
  EXPECT_TRUE(fs::exists(at("model/model.safetensors")));
}

TEST_F(TrainDataTest, TensorBoardReadsTheEvents) {
  const std::string python = python_with("tensorboard");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with tensorboard: FSDP_TEST_PYTHON names one";
  }
  train({"--data", at("a.txt"), "--tensorboard", at("events"), "--log", at("log"), "--eval-every",
         "2"});
  const CommandResult read = run_command({python, "-c", R"(
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in ("loss", "val_loss", "lr"):
    print(tag, *(f"{e.step}:{e.value:.6g}" for e in events.Scalars(tag)))
)",
                                          at("events")});
  ASSERT_EQ(read.code, 0) << read.err;
  const auto log = read_log(at("log"));
  for (const LogLine& line : log) {
    char text[64];
    std::snprintf(text, sizeof text, " %d:%.6g", static_cast<int>(line.step),
                  static_cast<double>(static_cast<float>(line.loss)));
    EXPECT_THAT(read.out, HasSubstr(text));
  }
  EXPECT_THAT(read.out, HasSubstr("val_loss 2:"));
}

TEST_F(TrainDataTest, EvalSaysWhatTransformersSays) {
  train({"--preset", "qwen3-tiny", "--data", at("a.txt"), "--out", at("model"), "--steps", "20",
         "--lr", "1e-2"});
  const std::string text = sample_text(64 * 32 + 1);
  directory_.write("judge.txt", text);
  const CommandResult here = run(
      {"eval", at("model"), "--data", at("judge.txt"), "--seq", "32", "--ranks", "2", "--bytes"});
  ASSERT_EQ(here.code, 0) << here.err;
  const auto place = here.out.find("per token  ");
  ASSERT_NE(place, std::string::npos) << here.out;
  const std::string python = python_with("transformers, torch");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with transformers: FSDP_TEST_PYTHON names one";
  }
  const CommandResult there = run_command({python, "-c", R"(
import sys, torch, transformers
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
data = list(open(sys.argv[2], "rb").read())
rows = torch.tensor(data[:-1]).view(-1, 32)
targets = torch.tensor(data[1:])
with torch.no_grad():
    logits = model(rows).logits.view(-1, 256)
print(torch.nn.functional.cross_entropy(logits, targets).item())
)",
                                           at("model"), at("judge.txt")},
                                          {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(there.code, 0) << there.err;
  EXPECT_NEAR(std::stod(here.out.substr(place + 11)), std::stod(there.out), 1e-4);
  EXPECT_THAT(here.out, HasSubstr("2048 tokens of 2048 bytes"));
}

}  // namespace
}  // namespace fsdp::test
