// SPDX-License-Identifier: Apache-2.0
/// What a run leaves behind: the saved model as Python sees it, the log, the lines, token files.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "archive/commit.hpp"
#include "e2e/program.hpp"
#include "fsdp/format/safetensors.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainOutputTest : public ::testing::Test {
 protected:
  TrainOutputTest() { directory_.write("text", sample_text(20000)); }

  CommandResult train(const std::vector<std::string>& flags) {
    CommandResult result =
        run_fsdp(laid_over(tiny_training(directory_.path("text"), directory_.path("out")), flags));
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }

  std::string model_path() const { return directory_.path("out/model.safetensors"); }

  static std::string uint16(const std::string& text, int times) {
    std::string bytes;
    for (const char character : text) {
      const int token = times * static_cast<unsigned char>(character);
      bytes.push_back(static_cast<char>(token & 0xff));
      bytes.push_back(static_cast<char>(token >> 8));
    }
    return bytes;
  }

  fsdp::test::TemporaryDirectory directory_;
};

TEST_F(TrainOutputTest, Fault103_Fault159_NoSpaceIsToldByAllRanksAndLeavesNothing) {
  const std::vector<std::string> limited = {"bash", "-c", "ulimit -f 4; exec \"$@\"", "bash",
                                            fsdp_program()};
  const CommandResult result =
      run_command(limited + tiny_training(directory_.path("text"), directory_.path("out")) +
                  std::vector<std::string>{"--ranks", "2", "--transport", "gloo"});
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("fsdp: rank 0: [i/o] rank "));
  EXPECT_THAT(result.err, HasSubstr("fsdp: rank 1: [i/o] rank "));
  EXPECT_THAT(result.err, HasSubstr("/.model.safetensors.partial-"));
  EXPECT_THAT(result.err, HasSubstr("': File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path("out")));
}

TEST_F(TrainOutputTest, Fault158_AFullDiskUnderLogOrOutputIsNoSuccess) {
  const std::string text = directory_.path("text");
  const auto line = laid_over(tiny_training(text, ""), {"--ranks", "1", "--sample", "0"});
  const CommandResult logged = run_fsdp(line + std::vector<std::string>{"--log", "/dev/full"});
  EXPECT_EQ(logged.code, 1);
  EXPECT_THAT(logged.err, HasSubstr("'/dev/full' cannot be written: No space left on device"));
  const CommandResult shown = run_command(
      std::vector<std::string>{"sh", "-c", "exec \"$@\" > /dev/full", "sh", fsdp_program()} + line);
  EXPECT_EQ(shown.code, 1);
  EXPECT_THAT(shown.err, HasSubstr("standard output could not be written"));
}

TEST_F(TrainOutputTest, Fault158_ASaveDirectoryInUseEndsTheRunAtItsBegin) {
  const archive::RootLock other(directory_.path("run"));
  const CommandResult result =
      run_fsdp(laid_over(tiny_training(directory_.path("text"), ""),
                         {"--ranks", "1", "--sample", "0", "--save", directory_.path("run")}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("another run saves to '" + directory_.path("run")));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("step 1")));
}

TEST_F(TrainOutputTest, PythonReadsTheModel) {
  train({"--untied", "--ranks", "2"});
  const std::string python = python_with("safetensors, numpy");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with safetensors and numpy";
  }
  const CommandResult read =
      run_command({python, "-c",
                   "import sys, numpy, safetensors.numpy as s\n"
                   "tensors = s.load_file(sys.argv[1])\n"
                   "for name in sorted(tensors):\n"
                   "  t = tensors[name]\n"
                   "  assert numpy.isfinite(t).all() and t.std() < 2, name\n"
                   "  print(name, t.dtype, *t.shape)\n"
                   "print('deviation', 0.015 < tensors['h.0.mlp.c_fc.weight'].std() < 0.025)\n",
                   model_path()});
  ASSERT_EQ(read.code, 0) << read.err;
  std::string expected;
  for (const std::string block : {"h.0.", "h.1."}) {
    for (const char* line :
         {"attn.c_attn.bias float32 96", "attn.c_attn.weight float32 32 96",
          "attn.c_proj.bias float32 32", "attn.c_proj.weight float32 32 32", "ln_1.bias float32 32",
          "ln_1.weight float32 32", "ln_2.bias float32 32", "ln_2.weight float32 32",
          "mlp.c_fc.bias float32 128", "mlp.c_fc.weight float32 32 128",
          "mlp.c_proj.bias float32 32", "mlp.c_proj.weight float32 128 32"}) {
      expected += block + line + "\n";
    }
  }
  expected +=
      "lm_head.weight float32 256 32\nln_f.bias float32 32\nln_f.weight float32 32\n"
      "wpe.weight float32 32 32\nwte.weight float32 256 32\ndeviation True\n";
  EXPECT_EQ(read.out, expected);
}

TEST_F(TrainOutputTest, ATiedHeadIsSavedOnce) {
  train({"--tied", "--ranks", "1", "--dtype", "float64"});
  const auto header = format::read_safetensors_header(model_path());
  EXPECT_EQ(header.tensors.size(), 28u);
  for (const auto& tensor : header.tensors) {
    EXPECT_NE(tensor.entry.name, "lm_head.weight");
    EXPECT_EQ(tensor.entry.dtype, "F64");
  }
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST_F(TrainOutputTest, PythonAndTheWriterAgreeOnTheLayout) {
  const std::string python = python_with("safetensors, numpy");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with safetensors and numpy";
  }
  const std::string path = directory_.path("python.safetensors");
  const CommandResult written =
      run_command({python, "-c",
                   "import sys, numpy as n, safetensors.numpy as s\n"
                   "s.save_file({'b': n.ones((2, 3), n.float32), 'a': n.ones((5,), n.float64),\n"
                   "             'c': n.ones((), n.int16)}, sys.argv[1], {'k': 'v'})\n",
                   path});
  ASSERT_EQ(written.code, 0) << written.err;
  const auto header = format::read_safetensors_header(path);
  ASSERT_EQ(header.tensors.size(), 3u);
  const auto layout = format::plan_safetensors(
      {{"a", "F64", {5}}, {"b", "F32", {2, 3}}, {"c", "I16", {}}}, {{"k", "v"}});
  EXPECT_EQ(layout.file_bytes, header.file_bytes);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(header.tensors[i].offset, layout.offsets[i]) << header.tensors[i].entry.name;
  }
  EXPECT_EQ(header.metadata.at("k"), "v");
}

TEST_F(TrainOutputTest, LinesAndLogTellTheRun) {
  const CommandResult result =
      train({"--ranks", "2", "--log", directory_.path("run.jsonl"), "--eval-every", "2"});
  EXPECT_THAT(result.out, HasSubstr("34,688 parameters"));
  EXPECT_THAT(result.out, HasSubstr("ranks    2 over shm, 3 units"));
  EXPECT_THAT(result.out, HasSubstr("promise"));
  EXPECT_THAT(result.out, HasSubstr("step 3/3"));
  EXPECT_THAT(result.out, HasSubstr("validation loss"));
  EXPECT_THAT(result.out, HasSubstr("In the beginning "));
  EXPECT_THAT(result.out, HasSubstr(model_path()));
  EXPECT_THAT(result.out, Not(HasSubstr("\r")));
  const auto log = read_log(directory_.path("run.jsonl"));
  ASSERT_EQ(log.size(), 3u);
  EXPECT_TRUE(std::isnan(log[0].validation_loss));
  EXPECT_NEAR(log[1].validation_loss, std::log(256.0), 1.0);
  EXPECT_FALSE(std::isnan(log[2].validation_loss));
}

TEST_F(TrainOutputTest, TokenFilesOfBothKindsTrainLikeTheText) {
  const std::string text = sample_text(20000);
  std::string header(1024, '\0');
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) {
      header[at + i] = static_cast<char>((value >> (8 * i)) & 0xff);
    }
  };
  put(0, 20240520);
  put(4, 1);
  put(8, static_cast<std::uint32_t>(text.size()));
  const std::string log = directory_.path("run.jsonl");
  const auto losses = [&](const std::string& data) {
    std::filesystem::remove(log);
    train({"--ranks", "1", "--data", data, "--log", log});
    std::vector<double> values;
    for (const LogLine& line : read_log(log)) {
      values.push_back(line.loss);
    }
    return values;
  };
  const auto expected = losses(directory_.path("text"));
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(losses(directory_.write("plain.bin", uint16(text, 1))), expected);
  EXPECT_EQ(losses(directory_.write("llmc.bin", header + uint16(text, 1))), expected);
}

TEST_F(TrainOutputTest, LargerVocabulariesTrain) {
  const CommandResult result =
      train({"--ranks", "2", "--vocab", "50257", "--data",
             directory_.write("wide.bin", uint16(sample_text(4000), 300))});
  EXPECT_THAT(result.out, HasSubstr("vocabulary 50257"));
  EXPECT_THAT(result.out, HasSubstr("nats per token"));
}

TEST_F(TrainOutputTest, ADivergingRunFailsAndSaysWhy) {
  const CommandResult result =
      run_fsdp(tiny_training(directory_.path("text"), "") +
               std::vector<std::string>{"--ranks", "2", "--optimizer", "sgd", "--lr", "1e30",
                                        "--clip", "0", "--warmup", "0"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("a lower --lr or a longer --warmup may help"));
}

}  // namespace
}  // namespace fsdp::test
