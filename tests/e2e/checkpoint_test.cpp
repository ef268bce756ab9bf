// SPDX-License-Identifier: Apache-2.0
/// `fsdp checkpoint` on what `fsdp train` saved, and Python on the same files.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "e2e/program.hpp"
#include "fsdp/archive/listing.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointCommandTest : public ::testing::Test {
 protected:
  CheckpointCommandTest() {
    directory_.write("text", sample_text(20000));
    const CommandResult trained =
        run_fsdp({"train", "--preset", "tiny", "--data", at("text"), "--out", at("out"), "--sample",
                  "0", "--global-batch", "8", "--steps", "4", "--save", at("run"), "--save-every",
                  "2", "--eval-batches", "1"});
    EXPECT_EQ(trained.code, 0) << trained.err;
  }
  std::string at(const std::string& name) const { return directory_.path(name); }

  static CommandResult checkpoint(const std::vector<std::string>& arguments) {
    return run_fsdp(std::vector<std::string>{"checkpoint"} + arguments);
  }

  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(CheckpointCommandTest, ListsShowsAndVerifies) {
  fs::create_directories(at("run/step-00000003"));
  const CommandResult listed = checkpoint({"ls", at("run")});
  EXPECT_EQ(listed.code, 0);
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step-00000002"), HasSubstr("step-00000004"),
                                HasSubstr("step-00000003  incomplete")));
  const CommandResult shown = checkpoint({"show", at("run"), "--tensors"});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, AllOf(HasSubstr("step       4"), HasSubstr("wte.weight"),
                               HasSubstr("next_sample = 32"), HasSubstr("F32")));
  EXPECT_EQ(checkpoint({"verify", at("run")}).code, 0);
}

/// Changes one bit in the middle of a file.
void flip(const std::string& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  stream.seekg(middle);
  const char byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(middle);
  stream.put(byte);
}

TEST_F(CheckpointCommandTest, VerifyFindsOneFlippedByte) {
  flip(at("run/step-00000004/optimizer.safetensors"));
  const CommandResult result = checkpoint({"verify", at("run")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("optimizer.safetensors': tensor '"),
                                HasSubstr("the index says"), HasSubstr("damaged")));
  EXPECT_EQ(checkpoint({"verify", at("run/step-00000002")}).code, 0);
}

TEST_F(CheckpointCommandTest, Fault157_NobodyUsesADamagedCheckpoint) {
  flip(at("run/step-00000004/model.safetensors"));
  const std::vector<std::vector<std::string>> commands = {
      {"generate", at("run"), "--tokens", "2"},
      {"generate", at("run"), "--tokens", "2", "--ranks", "2"},
      {"train", "--init", at("run"), "--data", at("text"), "--steps", "1", "--seq", "32", "--out",
       at("tuned")},
      {"checkpoint", "merge", at("run"), at("one.safetensors")},
      {"checkpoint", "split", at("run"), at("parts")},
      {"checkpoint", "convert", at("run"), at("half"), "--dtype", "bfloat16"},
      {"checkpoint", "diff", at("run"), at("run/step-00000002")}};
  for (const std::vector<std::string>& command : commands) {
    const CommandResult result = run_fsdp(command);
    EXPECT_NE(result.code, 0) << command[1];
    EXPECT_THAT(result.out + result.err,
                AllOf(HasSubstr("step-00000004/model.safetensors': tensor '"),
                      HasSubstr("the index says"), HasSubstr("changed or damaged")));
  }
  for (const char* target : {"one.safetensors", "parts", "half", "tuned/model.safetensors"}) {
    EXPECT_FALSE(fs::exists(at(target))) << target;
  }
  EXPECT_EQ(run_fsdp({"generate", at("run/step-00000002"), "--tokens", "2"}).code, 0);
}

TEST_F(CheckpointCommandTest, MergeSplitConvertAndDiffAgree) {
  EXPECT_EQ(checkpoint({"merge", at("run"), at("one.safetensors")}).code, 0);
  EXPECT_EQ(checkpoint({"diff", at("one.safetensors"), at("out")}).code, 0)
      << "the model that the run saved at its end";
  EXPECT_EQ(checkpoint({"split", at("run"), at("parts"), "--max-size", "50KB"}).code, 0);
  EXPECT_TRUE(fs::exists(at("parts/model.safetensors.index.json")));
  EXPECT_TRUE(fs::exists(at("parts/config.json")));
  EXPECT_EQ(checkpoint({"diff", at("one.safetensors"), at("parts")}).code, 0);
  EXPECT_EQ(checkpoint({"convert", at("run"), at("half"), "--dtype", "bfloat16"}).code, 0);
  const CommandResult half = checkpoint({"diff", at("run"), at("half")});
  EXPECT_EQ(half.code, 1);
  EXPECT_THAT(half.out, HasSubstr("F32 [256, 32] against BF16 [256, 32]"));
  const CommandResult steps =
      checkpoint({"diff", at("run/step-00000002"), at("run/step-00000004")});
  EXPECT_EQ(steps.code, 1);
  EXPECT_THAT(steps.out, HasSubstr("step: 2 against 4"));
  EXPECT_EQ(checkpoint({"merge", at("run"), at("one.safetensors")}).code, 2) << "it exists";
}

TEST_F(CheckpointCommandTest, Fault113_PythonOpensWeightsMomentsAndParts) {
  const std::string python = python_with("safetensors, numpy");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with safetensors and numpy";
  }
  EXPECT_EQ(checkpoint({"split", at("run"), at("parts"), "--max-size", "50KB"}).code, 0);
  const std::string program = R"(
import json, sys, numpy
from safetensors.numpy import load_file
run, parts, out = sys.argv[1:]
weights = load_file(run + "/model.safetensors")
index = json.load(open(run + "/checkpoint.json"))
assert set(weights) == set(index["tensors"]["model"])
for name, entry in index["tensors"]["model"].items():
    assert list(weights[name].shape) == entry["shape"], name
moments = load_file(run + "/optimizer.safetensors")
assert all(moments[name + ".exp_avg"].shape == weights[name].shape for name in weights)
assert all((moments[name + ".exp_avg_sq"] >= 0).all() for name in weights)
assert index["steps"]["wte.weight"] == 4
assert json.load(open(run + "/config.json"))["architectures"] == ["GPT2LMHeadModel"]
files = json.load(open(parts + "/model.safetensors.index.json"))["weight_map"]
merged = {}
for file in sorted(set(files.values())):
    merged.update(load_file(parts + "/" + file))
final = load_file(out + "/model.safetensors")
for name in final:
    numpy.testing.assert_array_equal(merged[name], final[name])
    numpy.testing.assert_array_equal(weights[name], final[name])
print("opened", len(weights))
)";
  const CommandResult result =
      run_command({python, "-c", program, at("run/step-00000004"), at("parts"), at("out")});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("opened 28"));
}

/// transformers' loss over the windows that fsdp judges by must be fsdp's: 5 % of the bytes at the
/// end, 32 windows of the context and a target, all of which --eval-batches takes.
TEST_F(CheckpointCommandTest, TransformersFindsTheModelAndItsLoss) {
  const std::string python = python_with("transformers, torch");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with transformers and torch: FSDP_TEST_PYTHON names one";
  }
  directory_.write("text", sample_text(20 * (32 * 32 + 1)));
  for (const std::string tied : {"--tied", "--untied"}) {
    const std::string run = at("run" + tied);
    const CommandResult trained = run_fsdp({"train",
                                            "--preset",
                                            "tiny",
                                            "--data",
                                            at("text"),
                                            "--out",
                                            at("out"),
                                            "--sample",
                                            "0",
                                            "--global-batch",
                                            "8",
                                            "--steps",
                                            "100",
                                            "--lr",
                                            "1e-2",
                                            "--save",
                                            run,
                                            "--eval-batches",
                                            "1000",
                                            "--log",
                                            at("log" + tied),
                                            tied});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const std::string program = R"(
import sys, torch, transformers
transformers.logging.set_verbosity_error()
directory, text = sys.argv[1:]
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    directory, dtype=torch.float32, output_loading_info=True)
assert type(model).__name__ == "GPT2LMHeadModel"
for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    assert not info[problem], (problem, info[problem])
tokens = torch.tensor(list(open(text, "rb").read()))
tokens, length = tokens[len(tokens) - round(len(tokens) * 0.05):], model.config.n_positions
windows = tokens.unfold(0, length + 1, length)
with torch.no_grad():
    logits = model.eval()(windows[:, :-1]).logits
print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item())
)";
    const CommandResult result =
        run_command({python, "-c", program, run + "/step-00000100", at("text")},
                    {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}});
    ASSERT_EQ(result.code, 0) << result.err;
    const double expected = read_log(at("log" + tied)).back().validation_loss;
    ASSERT_LT(expected, 1.5) << "weights that have learnt nothing would fit any model";
    EXPECT_NEAR(std::stod(result.out), expected, 5e-6) << tied << ": another GELU is 1.4e-5 off";
  }
}

}  // namespace
}  // namespace fsdp::test
