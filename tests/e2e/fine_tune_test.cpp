// SPDX-License-Identifier: Apache-2.0
/// Fine-tuning as the program does it: from saved weights, with adapters and without. The last test
/// asks PEFT; the others need no Python.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "e2e/program.hpp"
#include "fsdp/archive/weights.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A small Llama that has learnt something, made once.
class FineTuneTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<test::TemporaryDirectory>();
    made_->write("text", sample_text(20 * (32 * 32 + 1)));
    const CommandResult trained =
        run_fsdp({"train", "--preset", "llama-tiny", "--data", made_->path("text"), "--out",
                  made_->path("base"), "--sample", "0", "--global-batch", "8", "--steps", "30",
                  "--lr", "1e-2", "--eval-batches", "1000", "--log", made_->path("log")});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() { made_.reset(); }
  FineTuneTest() { fs::copy(made_->path(), at(""), fs::copy_options::recursive); }
  std::string at(const std::string& name) const { return directory_.path(name); }

  /// Trains from `flags`; what it printed.
  std::string fine_tune(const std::vector<std::string>& flags) const {
    const CommandResult result =
        run_fsdp(std::vector<std::string>{"train", "--init", at("base"), "--data", at("text"),
                                          "--sample", "0", "--seq", "32", "--global-batch", "8",
                                          "--eval-batches", "1000"} +
                 flags);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }

  static double number_after(const std::string& text, const std::string& words) {
    const auto place = text.find(words);
    EXPECT_NE(place, std::string::npos) << words << " in " << text;
    return place == std::string::npos ? 0 : std::stod(text.substr(place + words.size()));
  }
  static double before(const std::string& out) {
    return number_after(out, "before   validation loss ");
  }
  static double after(const std::string& out) { return number_after(out, "\nvalidation loss "); }

  std::string drawn(const std::vector<std::string>& flags) const {
    const CommandResult result = run_fsdp(
        std::vector<std::string>{"generate"} + flags +
        std::vector<std::string>{"--prompt", "the ", "--tokens", "40", "--temperature", "0"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  }

  static std::unique_ptr<test::TemporaryDirectory> made_;
  test::TemporaryDirectory directory_;
};

std::unique_ptr<test::TemporaryDirectory> FineTuneTest::made_;

TEST_F(FineTuneTest, BeginsWhereTheSavedModelWasAndGoesOn) {
  const double saved = read_log(at("log")).back().validation_loss;
  const std::string out = fine_tune({"--steps", "10", "--lr", "5e-3", "--out", at("tuned")});
  EXPECT_NEAR(before(out), saved, 1e-4);
  EXPECT_LT(after(out), saved);
  EXPECT_THAT(out, AllOf(HasSubstr("llama"), HasSubstr("begins   with " + at("base"))));
  EXPECT_EQ(drawn({at("tuned")}), drawn({at("tuned"), "--ranks", "3", "--no-cache"}));
  EXPECT_NE(drawn({at("tuned")}), "the \n");
}

TEST_F(FineTuneTest, AdaptersAreTrainedSavedMergedAndContinued) {
  const std::string out =
      fine_tune({"--steps", "20", "--lora-rank", "4", "--lora-targets", "q_proj,v_proj,down_proj",
                 "--lr", "2e-2", "--out", at("adapter"), "--save", at("run")});
  EXPECT_LT(after(out), before(out) - 0.01);
  EXPECT_FALSE(fs::exists(at("adapter/model.safetensors")));
  const archive::WeightSource adapter(at("adapter/adapter_model.safetensors"));
  EXPECT_EQ(adapter.tensors().size(), 2u * 3 * 2);
  EXPECT_NE(adapter.find("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"), nullptr);

  const CommandResult merged =
      run_fsdp({"checkpoint", "merge-lora", at("base"), at("adapter"), at("merged")});
  EXPECT_EQ(merged.code, 0) << merged.err;
  const std::string text = drawn({at("merged")});
  EXPECT_EQ(text, drawn({at("base"), "--adapter", at("adapter"), "--ranks", "2"}));
  EXPECT_EQ(text, drawn({at("run")})) << "a checkpoint holds weights and adapters";
  EXPECT_NE(text, drawn({at("base")}));

  const std::string on_merged =
      fine_tune({"--steps", "1", "--adapter", at("adapter"), "--out", "", "--lr", "1e-9"});
  EXPECT_NEAR(before(on_merged), after(out), 1e-3);
  const std::string continued = fine_tune({"--steps", "10", "--adapter", at("adapter"),
                                           "--train-adapter", "--out", at("more"), "--lr", "1e-2"});
  EXPECT_NEAR(before(continued), after(out), 1e-3);
  EXPECT_LT(after(continued), before(continued));
  EXPECT_TRUE(fs::exists(at("more/adapter_config.json")));
}

/// Bytes of a line of the promise, such as "gradient shards   900.00 KiB".
double promised(const std::string& out, const std::string& kind) {
  const auto place = out.find("\n           " + kind);
  EXPECT_NE(place, std::string::npos) << kind << " in " << out;
  std::istringstream line(place == std::string::npos ? "" : out.substr(place + 12 + kind.size()));
  double number = 0;
  std::string unit;
  line >> number >> unit;
  return number * (unit == "MiB" ? 1 << 20 : unit == "KiB" ? 1 << 10 : 1);
}

TEST_F(FineTuneTest, Fault037_AdaptersCostGradientsOfTheirOwnOnly) {
  const std::string all = fine_tune({"--steps", "1", "--out", ""});
  const std::string some =
      fine_tune({"--steps", "1", "--lora-rank", "1", "--lora-targets", "q_proj", "--out", ""});
  // 2 blocks x (32 + 32) elements on 2 ranks, each slice rounded up to 128 bytes.
  EXPECT_GT(promised(all, "gradient shards"), 60 << 10);
  EXPECT_LE(promised(some, "gradient shards"), 1 << 10);
  EXPECT_LE(promised(some, "optimizer moments"), 2 << 10);
}

TEST_F(FineTuneTest, BadInputIsNamedBeforeAnyRankStarts) {
  const auto refusal = [&](const std::vector<std::string>& flags) {
    const CommandResult result =
        run_fsdp(flags + std::vector<std::string>{"--data", at("text"), "--out", ""});
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refusal({"train", "--init", at("nowhere")}), HasSubstr("nothing at"));
  EXPECT_THAT(refusal({"train", "--init", at("base"), "--layers", "3"}), HasSubstr("--init"));
  EXPECT_THAT(refusal({"train", "--lora-rank", "4"}), HasSubstr("without --init"));
  std::ofstream(at("base/config.json"))
      << R"({"model_type":"llama","rope_scaling":{"type":"yarn"}})";
  EXPECT_THAT(refusal({"train", "--init", at("base")}),
              AllOf(HasSubstr("yarn"), HasSubstr("hidden_size is missing")));
  fs::remove(at("base/config.json"));
  EXPECT_THAT(refusal({"train", "--init", at("base")}), HasSubstr("has no config.json"));
  const CommandResult drawn = run_fsdp({"generate", at("base")});
  EXPECT_EQ(drawn.code, 2);
  EXPECT_THAT(drawn.err, HasSubstr("has no config.json"));
}

/// PEFT on what was trained here, and on its own adapters here.
TEST_F(FineTuneTest, PeftFindsTheAdapters) {
  fine_tune({"--steps", "10", "--lora-rank", "4", "--lr", "2e-2", "--out", at("adapter")});
  const std::string program = R"(
import sys, torch, transformers
from peft import PeftModel
transformers.logging.set_verbosity_error()
base, adapter = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, adapter).eval()
assert sum("lora_" in n for n, _ in model.named_parameters()) == 8
prompt = torch.tensor([list(b"the ")])
with torch.no_grad():
    for _ in range(20):
        prompt = torch.cat([prompt, model(input_ids=prompt).logits[:, -1:].argmax(-1)], 1)
print(bytes(prompt[0].tolist()).decode("latin-1"))
)";
  const std::string python = python_with("peft, transformers, torch");
  if (python.empty()) {
    GTEST_SKIP() << "no Python with peft: FSDP_TEST_PYTHON names one";
  }
  const CommandResult result = run_command({python, "-c", program, at("base"), at("adapter")},
                                           {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(result.code, 0) << result.err;
  const CommandResult here = run_fsdp({"generate", at("base"), "--adapter", at("adapter"),
                                       "--prompt", "the ", "--tokens", "20", "--temperature", "0"});
  EXPECT_EQ(here.out, result.out);
}

}  // namespace
}  // namespace fsdp::test
