// SPDX-License-Identifier: Apache-2.0
/// Models of Hugging Face transformers here, ours there, and text drawn from both. The oracle is
/// transformers itself, run when the test runs. See fine_tune_test.cpp for what needs no Python.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include "e2e/program.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/checkpoint/weights.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"
#include "support/temporary_directory.hpp"
#include "train/generation.hpp"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-4;

/// Small models with weights far from zero, saved in all the ways that published ones are; beside
/// each, tokens, logits and the greedy continuation.
constexpr const char* kMakeModels = R"(
import sys, torch, transformers
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
    MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
transformers.logging.set_verbosity_error()
out = sys.argv[1]
llama = dict(vocab_size=160, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
             num_attention_heads=6, max_position_embeddings=64, initializer_range=0.2,
             bos_token_id=None, eos_token_id=None)
gpt = dict(vocab_size=160, n_embd=48, n_layer=3, n_head=6, n_positions=64, initializer_range=0.2,
           bos_token_id=None, eos_token_id=None)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16, rope_theta=100.0)
linear = dict(rope_type="linear", factor=2.0, rope_theta=10000.0)
models = {
    "llama": (LlamaForCausalLM, LlamaConfig(**llama, num_key_value_heads=2, rope_parameters=llama3), {}),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**llama, num_key_value_heads=3, rope_parameters=linear,
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True), dict(max_shard_size="100KB")),
    "llama-bf16": (LlamaForCausalLM, LlamaConfig(**llama, num_key_value_heads=6, head_dim=16), {}),
    "mistral": (MistralForCausalLM, MistralConfig(**llama, num_key_value_heads=2, sliding_window=7), {}),
    "mistral-whole": (MistralForCausalLM, MistralConfig(**llama, num_key_value_heads=2,
        sliding_window=None), {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**llama, num_key_value_heads=2, tie_word_embeddings=True), {}),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config(**llama, num_key_value_heads=3,
        use_sliding_window=True, sliding_window=5, max_window_layers=1), {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**llama, num_key_value_heads=2, head_dim=16), {}),
    "qwen3-bias": (Qwen3ForCausalLM, Qwen3Config(**llama, num_key_value_heads=3, head_dim=8,
        attention_bias=True, use_sliding_window=True, sliding_window=6, max_window_layers=2), {}),
    "gpt2": (GPT2LMHeadModel, GPT2Config(**gpt), {}),
    "gpt2-untied": (GPT2LMHeadModel, GPT2Config(**gpt, tie_word_embeddings=False, n_inner=100), {}),
}
for seed, (name, (kind, config, options)) in enumerate(models.items()):
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        if name == "llama-bf16":
            model = model.to(torch.bfloat16)
            model.save_pretrained(f"{out}/{name}")
            # Not model.float(): rounding to 16 bits went into the rotary frequencies, too.
            model = kind.from_pretrained(f"{out}/{name}", dtype=torch.float32).eval()
        else:
            model.save_pretrained(f"{out}/{name}", **options)
        tokens = torch.randint(160, (2, 40))
        logits = model(tokens).logits
        prompt = tokens[:1, :9]
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                              max_new_tokens=40, pad_token_id=0)
    save_file({"tokens": tokens, "logits": logits.contiguous(), "text": text[0, 9:].clone()},
              f"{out}/{name}.expected.safetensors")
)";

constexpr const char* kNames[] = {"llama",         "llama-tied", "llama-bf16",   "mistral",
                                  "mistral-whole", "qwen2",      "qwen2-window", "qwen3",
                                  "qwen3-bias",    "gpt2",       "gpt2-untied"};

at::Tensor read(const archive::WeightSource& source, const std::string& name) {
  const archive::Tensor& tensor = *source.find(name);
  at::Tensor values =
      torch::empty(tensor.shape, tensor.dtype == "F32" ? torch::kFloat : torch::kLong);
  source.read(tensor, 0, tensor.bytes, values.data_ptr());
  return values;
}

double worst(const at::Tensor& one, const at::Tensor& other) {
  return (one - other).abs().max().item<double>();
}

/// The logits of saved weights, sharded over `ranks`.
at::Tensor logits_of(const std::string& path, const at::Tensor& tokens, int ranks) {
  at::Tensor logits;
  const models::ModelConfig config = train::config_of(path);
  run_threads(ranks, [&](const World& world) {
    torch::manual_seed(world.rank() + 1);  // nothing of the first weights may remain
    const auto model = models::make_model(config);
    Sharded sharded =
        fully_shard(model, world,
                    {.units = units_of<models::DecoderBlock>(), .debug = {.print_promise = false}});
    checkpoint::load_weights(path, sharded, {.name_of = [&](const std::string& stored) {
                               return models::parameter_of(config, stored);
                             }});
    model->eval();
    const torch::NoGradGuard no_grad;
    const at::Tensor own = model->forward(tokens);
    if (world.rank() == ranks - 1) {
      logits = own;
    }
  });
  return logits;
}

class RealModelsTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return directory_.path(name); }

  /// Runs a Python program; the test is skipped where there is no Python for it.
  bool run_python(const std::string& modules, const std::string& program,
                  std::vector<std::string> arguments, CommandResult& result) const {
    const std::string python = python_with(modules);
    if (python.empty()) {
      return false;
    }
    result = run_command(std::vector<std::string>{python, "-c", program} + arguments,
                         {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}});
    EXPECT_EQ(result.code, 0) << result.err;
    return true;
  }

  test::TemporaryDirectory directory_;
};

std::vector<std::string> numbers_in(const std::string& text) {
  static const std::regex kNumber("[0-9]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), kNumber), {}};
}

std::vector<std::string> as_text(const at::Tensor& tokens) {
  std::vector<std::string> text;
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    text.push_back(std::to_string(tokens[i].item<std::int64_t>()));
  }
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : ",") + part;
  }
  return text;
}

/// Models that transformers made, once for all tests.
class TransformersModelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string python = python_with("transformers, torch, safetensors");
    if (python.empty()) {
      return;
    }
    models_ = std::make_unique<test::TemporaryDirectory>();
    const CommandResult made = run_command({python, "-c", kMakeModels, models_->path()},
                                           {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() { models_.reset(); }
  void SetUp() override {
    if (models_ == nullptr) {
      GTEST_SKIP() << "no Python with transformers: FSDP_TEST_PYTHON names one";
    }
  }
  static std::string at(const std::string& name) { return models_->path(name); }

  static std::unique_ptr<test::TemporaryDirectory> models_;
};
std::unique_ptr<test::TemporaryDirectory> TransformersModelsTest::models_;

TEST_F(TransformersModelsTest, HaveTheSameLogitsHere) {
  EXPECT_TRUE(fs::exists(at("llama-tied/model.safetensors.index.json")));
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const archive::WeightSource expected(at(name + ".expected.safetensors"));
    const at::Tensor tokens = read(expected, "tokens"), logits = read(expected, "logits");
    EXPECT_GT(logits.std().item<double>(), 0.5) << "logits near zero would fit any model";
    for (const int ranks : {1, 2}) {
      EXPECT_LT(worst(logits_of(at(name), tokens, ranks), logits), kTolerance) << ranks << " ranks";
    }
  }
}

TEST_F(TransformersModelsTest, DrawTheSameGreedyTextHere) {
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const archive::WeightSource expected(at(name + ".expected.safetensors"));
    const std::string prompt = joined(as_text(read(expected, "tokens")[0].narrow(0, 0, 9)));
    const CommandResult drawn = run_fsdp({"generate", at(name), "--prompt-tokens", prompt,
                                          "--tokens", "40", "--temperature", "0", "--ranks",
                                          name == "llama" || name == "mistral" ? "2" : "1"});
    EXPECT_EQ(drawn.code, 0) << drawn.err;
    EXPECT_EQ(numbers_in(drawn.out), as_text(read(expected, "text")));
  }
}

TEST_F(RealModelsTest, WhatIsSavedHereHasTheSameLogitsInTransformers) {
  models::LlamaConfig llama{.vocab = 130,
                            .width = 40,
                            .inner = 72,
                            .layers = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_width = 12,
                            .context = 48,
                            .rope = {.theta = 500,
                                     .scaling = models::RopeScaling::kLlama3,
                                     .factor = 4,
                                     .original_context = 16},
                            .attention_bias = true,
                            .special = {.ends = {3, 5}}};
  models::LlamaConfig tied = llama;
  tied.tied = true;
  tied.rope = {.theta = 900, .scaling = models::RopeScaling::kLinear, .factor = 3};
  const models::GPTConfig gpt{.vocab = 130,
                              .width = 40,
                              .layers = 2,
                              .heads = 4,
                              .context = 48,
                              .tied = false,
                              .inner = 64};
  models::MistralConfig mistral{llama};
  mistral.attention_bias = false;
  mistral.window = 9;
  models::Qwen2Config qwen2{tied};
  qwen2.attention_bias = false;
  qwen2.input_bias = true;
  qwen2.head_width = 0;
  models::Qwen2Config windowed = qwen2;
  windowed.window = 8;
  windowed.first_windowed = 1;
  models::Qwen3Config qwen3{llama};
  qwen3.head_norms = true;
  std::vector<std::string> paths;
  torch::manual_seed(1);
  const at::Tensor tokens = torch::randint(130, {2, 33}, torch::kInt64);
  for (const models::ModelConfig& config :
       {models::ModelConfig(llama), models::ModelConfig(tied), models::ModelConfig(gpt),
        models::ModelConfig(mistral), models::ModelConfig(qwen2), models::ModelConfig(windowed),
        models::ModelConfig(qwen3)}) {
    paths.push_back(at("m" + std::to_string(paths.size())));
    fs::create_directories(paths.back());
    std::ofstream(paths.back() + "/config.json") << models::config_json(config, "float32");
    run_threads(2, [&](const World& world) {
      torch::manual_seed(7);
      const auto model = models::make_model(config);
      for (auto& parameter : model->parameters()) {
        const torch::NoGradGuard no_grad;
        parameter.add_(torch::randn_like(parameter), 0.15);
      }
      const Sharded sharded = fully_shard(
          model, world,
          {.units = units_of<models::DecoderBlock>(), .debug = {.print_promise = false}});
      checkpoint::save_safetensors(sharded, paths.back() + "/model.safetensors",
                                   {{"format", "pt"}});
    });
  }
  CommandResult result;
  const std::string program = R"(
import sys, torch, transformers
from safetensors.torch import save_file
transformers.logging.set_verbosity_error()
tokens = torch.tensor([int(t) for t in sys.argv[1].split(",")]).view(2, 33)
for path in sys.argv[2:]:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[problem], (path, problem, info[problem])
    with torch.no_grad():
        save_file({"logits": model.eval()(tokens).logits.contiguous()}, path + "/out.safetensors")
)";
  if (!run_python("transformers, torch, safetensors", program,
                  std::vector<std::string>{joined(as_text(tokens.flatten()))} + paths, result)) {
    GTEST_SKIP() << "no Python with transformers: FSDP_TEST_PYTHON names one";
  }
  for (const std::string& path : paths) {
    const at::Tensor expected = read(archive::WeightSource(path + "/out.safetensors"), "logits");
    EXPECT_GT(expected.std().item<double>(), 0.3);
    EXPECT_LT(worst(logits_of(path, tokens, 1), expected), kTolerance) << path;
  }
}

// ---- without Python --------------------------------------------------------------------------

/// Bytes that this process has read so far.
std::int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::int64_t value = 0;
  file >> name >> value;
  EXPECT_EQ(name, "rchar:");
  return value;
}

TEST_F(RealModelsTest, Fault079_RanksReadAFileOnceTogether) {
  const models::GPTConfig config{.width = 256, .layers = 4, .heads = 4};
  const auto make = [&](const World& world) {
    return fully_shard(
        models::make_model(config), world,
        {.units = units_of<models::DecoderBlock>(), .debug = {.print_promise = false}});
  };
  run_threads(1, [&](const World& world) {
    checkpoint::save_safetensors(make(world), at("model.safetensors"));
  });
  constexpr int kRanks = 4;
  std::int64_t before = 0, after = 0;
  run_threads(kRanks, [&](const World& world) {
    Sharded sharded = make(world);
    world.barrier();
    before = world.rank() == 0 ? bytes_read() : before;
    world.barrier();
    checkpoint::load_weights(at("model.safetensors"), sharded);
    world.barrier();
    after = world.rank() == 0 ? bytes_read() : after;
  });
  const auto size = static_cast<std::int64_t>(fs::file_size(at("model.safetensors")));
  EXPECT_GE(after - before, size - 10'000);
  EXPECT_LT(after - before, size + kRanks * 100'000) << "headers and nothing else";
}

}  // namespace
}  // namespace fsdp::test
