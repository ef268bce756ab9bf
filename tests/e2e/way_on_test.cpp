// SPDX-License-Identifier: Apache-2.0
/// What a refusal tells to do: the commands that it names are run as they stand, and lead on.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "e2e/program.hpp"
#include "fsdp/archive/listing.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WayOnTest : public ::testing::Test {
 protected:
  WayOnTest() { directory_.write("text", sample_text(20000)); }
  std::string at(const std::string& name) const { return directory_.path(name); }

  CommandResult train(const std::vector<std::string>& flags) const {
    return run_fsdp(laid_over(
        laid_over(tiny_training(at("text"), ""), {"--ranks", "1", "--sample", "0"}), flags));
  }
  /// Why it is refused.
  std::string refusal(const std::vector<std::string>& flags) const {
    const CommandResult result = train(flags);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// The text that the command in a refusal of `name` makes.
  std::string converted(const std::string& name, const std::string& bytes) const {
    directory_.write(name, bytes);
    const std::string text = refusal({"--data", at(name)});
    const std::string before = "make text of it: ", behind = "; or --any-bytes";
    const auto begin = text.find(before) + before.size();
    const auto end = text.find(behind, begin);
    EXPECT_NE(end, std::string::npos) << text;
    const CommandResult made = run_command({"sh", "-c", text.substr(begin, end - begin)});
    EXPECT_EQ(made.code, 0) << text << made.err;
    return text_of(at(name + ".txt"));
  }

  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(WayOnTest, Fault164_RecordsOfJsonBecomeText) {
  EXPECT_EQ(converted("a.lines", "{\"text\": \"Grö\\u00dfe\"}\n\n{\"text\": \"two\"}\n"),
            "Größe\n\ntwo\n\n");
  EXPECT_EQ(converted("it's.json", R"([{"instruction":"Add","input":"1 1","output":"2"},
                                       {"instruction":"Hi","input":"","output":"Ho"}])"),
            "Add\n\n1 1\n\n2\n\nHi\n\nHo\n\n");
  EXPECT_EQ(converted("chat",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                      "{\"role\":\"assistant\",\"content\":\"b\"}]}\n"),
            "user: a\n\nassistant: b\n\n");
  EXPECT_EQ(converted("share.json",
                      "\xef\xbb\xbf"
                      R"([{"conversations":[{"from":"human","value":"a"}]}])"),
            "human: a\n\n");
  EXPECT_EQ(converted("pairs", R"({"prompt":"a ","completion":"b"})"), "a b\n\n");
  EXPECT_EQ(converted("other.json", "{\n\"title\": \"a\", \"body\": \"b\", \"n\": 1\n}"),
            "a\nb\n\n");
  EXPECT_EQ(converted("list.json", R"(["a", "b"])"), "a\n\nb\n\n");
  EXPECT_EQ(converted("notes.ipynb",
                      R"({"cells":[{"source":["# A\n","b"]},{"source":"c"}],"nbformat":4})"),
            "# A\nb\n\nc\n\n");
}

TEST_F(WayOnTest, Fault164_NoStringOfALongRecordIsLost) {
  const std::string words(100000, 'x');  // a record whose end is not looked at
  EXPECT_EQ(converted("share.txt", R"({"id":"one","conversations":[{"from":"human","value":")" +
                                       words + R"("},{"from":"gpt","value":"b"}],"n":1})"),
            "one\nhuman\n" + words + "\ngpt\nb\n\n");
}

TEST_F(WayOnTest, Fault164_TablesAndPagesBecomeText) {
  EXPECT_EQ(converted("a.csv", "\"one, two\",1\n\nthree,2\n"), "one, two\n1\n\nthree\n2\n\n");
  EXPECT_EQ(converted("a.tsv", "one\t1\ntwo\t2\n"), "one\n1\n\ntwo\n2\n\n");
  EXPECT_EQ(converted("a.html", "<html><script>x < 1</script><p>a &amp; b</p></html>\n"),
            "a & b\n\n");
}

TEST_F(WayOnTest, CompressedAndOtherwiseCodedTextBecomesText) {
  const std::string text = text_of(at("text"));
  ASSERT_EQ(run_command({"sh", "-c", "gzip -k " + at("text")}).code, 0);
  EXPECT_EQ(converted("b.gz", text_of(at("text.gz"))), text);
  ASSERT_EQ(
      run_command({"sh", "-c", "iconv -f UTF-8 -t UTF-16 " + at("text") + " > " + at("u")}).code,
      0);
  EXPECT_EQ(converted("c.txt", text_of(at("u"))), text);
}

TEST_F(WayOnTest, AnyBytesTakesThemAsTheyAre) {
  const std::string table = directory_.write("a.csv", sample_text(4000));
  EXPECT_EQ(train({"--data", table, "--any-bytes"}).code, 0);
  EXPECT_EQ(
      run_fsdp({"tokenize", "--tokenizer", "bytes", "--out", at("a.bin"), "--any-bytes", table})
          .code,
      0);
}

TEST_F(WayOnTest, Fault165_AUsedDirectoryIsResumedOrLeftAlone) {
  const std::vector<std::string> saving = {"--save", at("run"), "--keep", "1", "--log", at("log")};
  ASSERT_EQ(train(saving).code, 0);
  const std::string log = text_of(at("log"));
  EXPECT_THAT(refusal(saving),
              AllOf(HasSubstr("holds 1 checkpoint of an earlier run, up to step 3"),
                    HasSubstr("--resume goes on from there, another directory begins anew")));
  EXPECT_THAT(refusal({"--save", at("other"), "--log", at("log")}), HasSubstr("is there already"));
  EXPECT_EQ(archive::latest_checkpoint(at("run")).found->step, 3);
  EXPECT_EQ(text_of(at("log")), log);

  const CommandResult more = train(saving + std::vector<std::string>{"--resume", "--steps", "5"});
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_EQ(text_of(at("log")).substr(0, log.size()), log);
  EXPECT_EQ(read_log(at("log")).size(), 5u);
}

TEST_F(WayOnTest, Fault166_ALogOfAnotherRunIsNeverTouched) {
  ASSERT_EQ(train({"--save", at("a"), "--log", at("a.log"), "--seed", "5"}).code, 0);
  ASSERT_EQ(train({"--save", at("b")}).code, 0);
  const std::string log = text_of(at("a.log"));
  EXPECT_THAT(refusal({"--save", at("b"), "--resume", "--steps", "5", "--log", at("a.log")}),
              HasSubstr("is of another run: its step 3 has the loss"));
  EXPECT_THAT(refusal({"--save", at("c"), "--resume", "--log", at("a.log")}),
              HasSubstr("none that belongs to the run in --save"));
  EXPECT_THAT(refusal({"--save", at("b"), "--resume", "--log", at("text")}),
              HasSubstr("none that belongs to the run in --save"));
  EXPECT_EQ(text_of(at("a.log")), log);
  // A run that starts to log when it is resumed has no lines before.
  EXPECT_EQ(train({"--save", at("b"), "--resume", "--steps", "5", "--log", at("b.log")}).code, 0);
  EXPECT_EQ(read_log(at("b.log")).front().step, 4);
  EXPECT_EQ(train({"--save", at("b"), "--resume", "--steps", "6", "--log", at("b.log")}).code, 0);
  EXPECT_EQ(read_log(at("b.log")).size(), 3u);
}

TEST_F(WayOnTest, ARunThatEndedBeforeItsFirstCheckpointBeginsAgainWithItsLog) {
  const std::vector<std::string> line = {"--save", at("run"), "--resume", "--log", at("log")};
  ASSERT_EQ(train(line).code, 0);
  fs::remove_all(archive::latest_checkpoint(at("run")).found->path);
  const CommandResult again = train(line);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_log(at("log")).size(), 3u);
}

TEST_F(WayOnTest, Fault156_WhereOnlyDamagedCheckpointsAreNothingBeginsAnew) {
  const std::vector<std::string> saving = {"--save",  at("run"),      "--log",
                                           at("log"), "--save-every", "1"};
  ASSERT_EQ(train(saving).code, 0);
  const std::string log = text_of(at("log"));
  const std::string first = at("run/step-00000002"), second = at("run/step-00000003");
  fs::resize_file(first + "/model.safetensors", 1000);
  const auto index = fs::path(second) / "checkpoint.json";
  const std::string sound = text_of(index.string());
  const auto refused = [&](const std::string& why) {
    EXPECT_THAT(refusal(saving + std::vector<std::string>{"--resume"}),
                AllOf(HasSubstr("none of 2 checkpoints"), HasSubstr(first + "'"),
                      HasSubstr(second + "'"), HasSubstr(why), HasSubstr("to begin anew")));
    EXPECT_EQ(text_of(at("log")), log);
  };
  std::ofstream(index) << std::string(sound).replace(sound.find("wte"), 3, "wtf");
  refused("the index was changed or damaged");
  std::ofstream(index) << sound.substr(0, sound.size() / 2);
  refused("truncated, or not an index");
  fs::remove(index);
  refused("has no checkpoint.json");
  std::ofstream(index) << sound;
  fs::remove(second + "/optimizer.safetensors");
  refused("is missing");
}

TEST_F(WayOnTest, Fault156_AnotherTextOfTheSameLengthIsNotResumed) {
  ASSERT_EQ(train({"--save", at("run")}).code, 0);
  std::string text = sample_text(20000);
  text[10000] ^= 1;
  directory_.write("text", text);
  EXPECT_THAT(refusal({"--save", at("run"), "--resume", "--steps", "5"}),
              HasSubstr("was trained on other data than --data"));
  directory_.write("text", sample_text(20000));
  EXPECT_EQ(train({"--save", at("run"), "--resume", "--steps", "5"}).code, 0);
}

TEST_F(WayOnTest, Fault161_AnotherNumberOfThreadsIsSaid) {
  ASSERT_EQ(train({"--save", at("run")}).code, 0);
  const auto resumed = [&](const std::string& threads, const std::string& steps) {
    const CommandResult result = run_command(
        std::vector<std::string>{fsdp_program()} +
            laid_over(tiny_training(at("text"), ""), {"--ranks", "1", "--sample", "0", "--save",
                                                      at("run"), "--resume", "--steps", steps}),
        {{"OMP_NUM_THREADS", threads}});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(resumed("1", "4"), "");
  EXPECT_THAT(resumed("2", "5"), HasSubstr("was trained with 1 threads a rank, this run has 2"));
}

TEST_F(WayOnTest, Fault165_AnotherModelIsNotResumed) {
  ASSERT_EQ(train({"--save", at("run")}).code, 0);
  // Weights of the same shapes, cut into other heads.
  EXPECT_THAT(refusal({"--save", at("run"), "--resume", "--steps", "5", "--heads", "4"}),
              AllOf(HasSubstr("is of another model: n_head "), HasSubstr("4 here")));
  EXPECT_THAT(refusal({"--save", at("run"), "--resume", "--steps", "5", "--optimizer", "lion"}),
              HasSubstr("has the state of --optimizer adamw, not of lion"));
  EXPECT_THAT(refusal({"--save", at("run"), "--resume", "--steps", "2"}),
              HasSubstr("is at step 3, beyond --steps 2"));
}

TEST_F(WayOnTest, EveryRankOfAJobRefusesAlike) {
  ASSERT_EQ(train({"--save", at("run")}).code, 0);
  const CommandResult result =
      run_fsdp(std::vector<std::string>{"run", "-n", "2", "--", fsdp_program()} +
               laid_over(tiny_training(at("text"), ""), {"--save", at("run")}));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("fsdp: rank 0: "), HasSubstr("fsdp: rank 1: "),
                                HasSubstr("of an earlier run")));
}

TEST_F(WayOnTest, Fault167_APublishedModelWithoutItsTokenizerIsNotTrainedOnBytes) {
  const std::string base = at("base");
  ASSERT_EQ(train({"--vocab", "300", "--out", base}).code, 0);
  const auto from = [&](const std::vector<std::string>& flags) {
    return run_fsdp(std::vector<std::string>{"train", "--init", base, "--data", at("text"),
                                             "--steps", "1", "--seq", "32", "--global-batch", "2",
                                             "--ranks", "1", "--out", at("tuned")} +
                    flags);
  };
  const CommandResult missing = from({});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("has no tokenizer beside it and 300 tokens"),
                                 HasSubstr("--bytes trains on bytes all the same")));
  std::ofstream(base + "/tokenizer.model") << "\n\x0e\n\x05<unk>";
  const CommandResult unusable = from({});
  EXPECT_EQ(unusable.code, 2);
  EXPECT_THAT(unusable.err, AllOf(HasSubstr("sentencepiece"), HasSubstr("--bytes trains on")));
  const CommandResult bytes = from({"--bytes"});
  EXPECT_EQ(bytes.code, 0) << bytes.err;
  EXPECT_FALSE(fs::exists(at("tuned/tokenizer.model"))) << "it did not make these tokens";
  EXPECT_EQ(run_fsdp({"generate", at("tuned"), "--tokenizer", "bytes", "--tokens", "2"}).code, 0);
  const CommandResult over = from({"--bytes", "--steps", "2"});
  EXPECT_EQ(over.code, 2) << "--steps is given twice";
}

TEST_F(WayOnTest, Fault159_SizesOfAConfigurationAreComparedWithTheWeights) {
  ASSERT_EQ(train({"--out", at("out")}).code, 0);
  std::string config = text_of(at("out/config.json"));
  const std::string layers = "\"n_layer\": 2";
  ASSERT_NE(config.find(layers), std::string::npos);
  config.replace(config.find(layers), layers.size(), "\"n_layer\": 16777216");
  directory_.write("out/config.json", config);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"generate", at("out"), "--tokens", "2"},
           {"train", "--init", at("out"), "--data", at("text"), "--out", at("tuned")}}) {
    const CommandResult result = run_fsdp(command);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("its config.json describes"),
                                  HasSubstr("16777216 layers of width 32")));
  }
}

TEST_F(WayOnTest, APromptBeyondTheContextIsRefused) {
  ASSERT_EQ(train({"--out", at("out")}).code, 0);
  const CommandResult result = run_fsdp({"generate", at("out"), "--prompt", std::string(33, 'a')});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("the prompt has 33 tokens, the model sees 32 at once"));
}

TEST_F(WayOnTest, Fault168_WeightsThatAreLostAreNeverSaved) {
  const std::vector<std::string> wild = {"--optimizer", "sgd",     "--lr",         "1e30",
                                         "--clip",      "0",       "--warmup",     "0",
                                         "--save",      at("run"), "--save-every", "1"};
  const CommandResult result = train(wild + std::vector<std::string>{"--out", at("out")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("a lower --lr"));
  EXPECT_FALSE(fs::exists(at("out/model.safetensors")));
  // The last step's update alone, which no later loss would show.
  const CommandResult last = train({"--steps", "1", "--optimizer", "sgd", "--lr", "1e38", "--clip",
                                    "0", "--warmup", "0", "--out", at("out")});
  EXPECT_EQ(last.code, 1) << last.out;
  EXPECT_FALSE(fs::exists(at("out/model.safetensors")));
}

TEST_F(WayOnTest, PicklesBecomeSafetensors) {
  const std::string python = python_with("torch, safetensors");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with torch and safetensors";
  }
  ASSERT_EQ(train({"--out", at("model")}).code, 0);
  ASSERT_EQ(run_command({python, "-c",
                         "import sys, torch; from safetensors.torch import load_file; "
                         "torch.save(load_file(sys.argv[1]), sys.argv[2])",
                         at("model/model.safetensors"), at("model/pytorch_model.bin")})
                .code,
            0);
  fs::remove(at("model/model.safetensors"));
  const CommandResult refused = run_fsdp({"generate", at("model"), "--tokens", "2"});
  EXPECT_EQ(refused.code, 2);
  const auto begin = refused.err.find("python3 -c");
  ASSERT_NE(begin, std::string::npos) << refused.err;
  const std::string command = python + refused.err.substr(begin + 7);
  const CommandResult made = run_command({"sh", "-c", command});
  EXPECT_EQ(made.code, 0) << command << made.err;
  EXPECT_EQ(run_fsdp({"generate", at("model"), "--tokens", "2"}).code, 0);
}

}  // namespace
}  // namespace fsdp::test
