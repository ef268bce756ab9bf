// SPDX-License-Identifier: Apache-2.0
/// `fsdp generate`: text from saved weights, sharded over ranks.
#include <cstdio>
#include <exception>
#include <memory>

#include "commands.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/launch/launcher.hpp"
#include "fsdp/train/generation.hpp"
#include "places.hpp"

namespace fsdp::apps {
namespace {

constexpr std::int64_t kByteVocabulary = 256;

struct GenerateFlags {
  train::GenerationConfig config;
  std::string prompt = "In the beginning ";
  bool ignore_end = false, no_cache = false;
  int ranks = 1;
  std::string transport = "auto";
};

void add_flags(CLI::App& command, GenerateFlags& flags) {
  train::GenerationConfig& config = flags.config;
  command
      .add_option("PATH", config.path,
                  "Weights and their config.json: a run's --out or --save, a directory as Hugging "
                  "Face writes it, or a .gguf file of a Llama model")
      ->required();
  auto* prompt =
      command.add_option("--prompt", flags.prompt, "What the text begins with, for models of bytes")
          ->capture_default_str();
  command.add_option("--prompt-tokens", config.prompt, "The same as numbers, such as 1,42,7")
      ->delimiter(',')
      ->excludes(prompt);
  command.add_option("--tokens", config.tokens, "Tokens to draw, at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--temperature", config.temperature, "0 takes the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--top-k", config.top_k, "Draw among the k likeliest; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--top-p", config.top_p,
                  "Draw among the fewest likeliest whose probabilities reach this")
      ->capture_default_str();
  command.add_option("--seed", config.seed, "Decides what is drawn")->capture_default_str();
  command.add_option("--adapter", config.adapter, "Directory of LoRA adapters to add");
  command.add_flag("--ignore-end", flags.ignore_end, "Go on after a token that ends a text");
  command.add_flag("--no-cache", flags.no_cache,
                   "Keep no keys and values: less memory, and each token costs a pass over all");
  command.add_option("--ranks", flags.ranks, "Ranks to start here (default: 1, or the job's)")
      ->check(CLI::Range(1, 4096));
  command.add_option("--prefetch", config.prefetch, "Units gathered ahead of the computation")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command.add_option("--transport", flags.transport, "How ranks talk; auto: shm on one host")
      ->check(CLI::IsMember({"auto", "shm", "gloo", "c10d"}))
      ->capture_default_str();
}

bool is_of_bytes(const models::ModelConfig& model) {
  return models::sizes(model).vocab == kByteVocabulary;
}

/// The prompt as tokens, checked before any rank starts.
void resolve(GenerateFlags& flags) {
  train::GenerationConfig& config = flags.config;
  models::ModelConfig model;
  as_bad_input([&] { model = train::config_of(config.path); });
  FSDP_CHECK(config.top_p > 0 && config.top_p <= 1, ErrorCode::kInvalidArgument, "--top-p is ",
             config.top_p, ", must be above 0 and at most 1");
  const std::int64_t vocab = models::sizes(model).vocab;
  if (config.prompt.empty()) {
    FSDP_CHECK(is_of_bytes(model), ErrorCode::kInvalidArgument, "the model has ", vocab,
               " tokens, not the 256 bytes: give the prompt as --prompt-tokens");
    FSDP_CHECK(!flags.prompt.empty(), ErrorCode::kInvalidArgument, "--prompt is empty");
    for (const char character : flags.prompt) {
      config.prompt.push_back(static_cast<unsigned char>(character));
    }
  }
  for (const std::int64_t token : config.prompt) {
    FSDP_CHECK(token >= 0 && token < vocab, ErrorCode::kInvalidArgument, "--prompt-tokens has ",
               token, ", outside the vocabulary of ", vocab);
  }
  config.use_cache = !flags.no_cache;
  if (!flags.ignore_end) {
    config.ends = models::special_tokens(model).ends;
  }
}

/// Shows tokens as they come: bytes as they are, others as numbers.
class Printer {
 public:
  explicit Printer(bool bytes) : bytes_(bytes) {}
  void operator()(std::int64_t token) {
    if (bytes_) {
      std::putchar(static_cast<int>(token));
    } else {
      std::printf("%s%lld", is_first_ ? "" : " ", static_cast<long long>(token));
    }
    is_first_ = false;
    std::fflush(stdout);
  }

 private:
  bool bytes_;
  bool is_first_ = true;
};

int generate_here(const GenerateFlags& flags) {
  const World world = init({.transport = flags.transport});
  try {
    const bool bytes = is_of_bytes(train::config_of(flags.config.path));
    if (bytes && world.rank() == 0) {
      std::printf("%s", flags.prompt.c_str());
    }
    train::generate(flags.config, world, Printer(bytes));
    if (world.rank() == 0) {
      std::printf("\n");
    }
    return kSuccess;
  } catch (const std::exception& error) {
    world.publish_failure(error.what());
    throw;
  }
}

int launch_ranks(const GenerateFlags& flags, const Arguments& arguments) {
  launch::LaunchOptions options;
  options.ranks = flags.ranks;
  options.command = {program_path()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return launch::run(options);
}

}  // namespace

Action add_generate(CLI::App& app, const Arguments& arguments) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      app.add_subcommand("generate", "Draw text from saved weights, sharded over ranks");
  add_flags(*command, *flags);
  command->footer(
      "Each rank holds 1/N of the weights and gathers one block at a time.\n"
      "\n"
      "Examples:\n"
      "  fsdp generate runs/model --prompt \"And God said\" --tokens 300\n"
      "  fsdp generate runs/mine --temperature 0                the newest checkpoint in it\n"
      "  fsdp generate smollm2 --prompt-tokens 504,3575 --top-p 0.9 --ranks 2\n"
      "  fsdp generate smollm2 --adapter runs/adapter --prompt-tokens 504,3575\n"
      "\n"
      "Exit codes: 0 success, 1 a rank failed, 2 bad input (nothing was started).");
  return [flags, arguments] {
    resolve(*flags);
    const bool is_job = !job_variable().empty();
    return is_job || flags->ranks == 1 ? generate_here(*flags) : launch_ranks(*flags, arguments);
  };
}

}  // namespace fsdp::apps
