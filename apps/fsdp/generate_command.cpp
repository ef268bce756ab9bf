// SPDX-License-Identifier: Apache-2.0
/// `fsdp generate`: text from saved weights, sharded over ranks.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <utility>

#include "bad_input.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"
#include "fsdp/comm/world.hpp"
#include "fsdp/data/chat_template.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "launch/launcher.hpp"
#include "own_ranks.hpp"
#include "places.hpp"
#include "train/generation.hpp"

namespace fsdp::apps {
namespace {

constexpr std::int64_t kByteVocabulary = 256;

struct GenerateFlags {
  train::GenerationConfig config;
  std::string tokenizer;
  bool speaks_numbers = false;  ///< the prompt came as numbers, so the text goes as such
  std::string prompt = "In the beginning ";
  std::string system;  ///< with `chat`
  bool ignore_end = false, no_cache = false, chat = false;
  int ranks = 1;
  std::string transport = "auto";
  std::string device = "auto";
};

void add_flags(CLI::App& command, GenerateFlags& flags) {
  train::GenerationConfig& config = flags.config;
  command
      .add_option("PATH", config.path,
                  "Weights and their config.json: a run's --out or --save, a directory as Hugging "
                  "Face writes it, or a .gguf file of a Llama model")
      ->required();
  auto* prompt = command.add_option("--prompt", flags.prompt, "What the text begins with")
                     ->capture_default_str();
  command
      .add_option("--prompt-tokens", config.prompt,
                  "The same as tokens, such as 1,42,7; the text is shown as tokens, too")
      ->delimiter(',')
      ->excludes(prompt);
  command
      .add_option("--tokenizer", flags.tokenizer,
                  "A model's directory, tokenizer.json or another file that fsdp tokenize takes "
                  "(default: the one beside the weights; without one, 256 tokens are bytes)")
      ->excludes("--prompt-tokens");
  auto* chat = command.add_flag(
      "--chat", flags.chat,
      "The prompt is a question, asked by the model's chat template; its answer alone is shown");
  chat->excludes("--prompt-tokens");
  command.add_option("--system", flags.system, "With --chat: the system message")->needs(chat);
  command.add_option("--tokens", config.tokens, "Tokens to draw, at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  command.add_option("--temperature", config.temperature, "0 takes the likeliest token")
      ->check(at_least_zero())
      ->capture_default_str();
  command.add_option("--top-k", config.top_k, "Draw among the k likeliest; 0: among all")
      ->check(at_least_zero())
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
      ->check(CLI::IsMember(comm::transport_words()))
      ->capture_default_str();
  command.add_option("--device", flags.device, "Where ranks compute: auto, cpu, cuda or cuda:N")
      ->capture_default_str();
}

/// What turns text into this model's tokens; nothing where nobody knows.
std::shared_ptr<const tokens::Tokenizer> tokenizer_of(const GenerateFlags& flags,
                                                      std::int64_t vocab) {
  const std::string path =
      flags.tokenizer.empty() ? tokenizer_beside(flags.config.path) : flags.tokenizer;
  if (!path.empty()) {
    return tokens::load(path);
  }
  return vocab == kByteVocabulary ? tokens::bytes() : nullptr;
}

/// The text that asks the prompt, by the chat template beside the tokenizer.
std::string asked(const GenerateFlags& flags) {
  const std::string path =
      flags.tokenizer.empty() ? tokenizer_beside(flags.config.path) : flags.tokenizer;
  std::error_code ignored;
  const std::string directory = std::filesystem::is_directory(path, ignored)
                                    ? path
                                    : std::filesystem::path(path).parent_path().string();
  return data::ChatTemplate::load(directory).ask(flags.prompt, flags.system);
}

/// The prompt as tokens, checked before any rank starts.
void resolve(GenerateFlags& flags) {
  train::GenerationConfig& config = flags.config;
  as_bad_input([&] { comm::check_device(flags.device); });
  models::ModelConfig model;
  need_path("PATH", config.path, Wanted::kModel);
  as_bad_input([&] { model = train::config_of(config.path); });
  FSDP_CHECK(config.top_p > 0 && config.top_p <= 1, ErrorCode::kInvalidArgument, "--top-p is ",
             config.top_p, ", must be above 0 and at most 1");
  if (!config.adapter.empty()) {
    need_path("--adapter", config.adapter, Wanted::kModel);
    as_bad_input([&] { archive::WeightSource::with_adapter(config.path, config.adapter); });
  }
  if (!flags.tokenizer.empty() && flags.tokenizer != "bytes") {
    need_path("--tokenizer", flags.tokenizer, Wanted::kModel);
  }
  const std::int64_t vocab = models::sizes(model).vocab;
  flags.speaks_numbers = !config.prompt.empty();
  if (!flags.speaks_numbers) {
    as_bad_input([&] {
      const auto tokenizer = tokenizer_of(flags, vocab);
      FSDP_CHECK(tokenizer != nullptr, ErrorCode::kInvalidArgument, "'", config.path,
                 "' has no tokenizer beside it and ", vocab,
                 " tokens, so they are no bytes: name its --tokenizer (\"bytes\" if it was trained "
                 "with --bytes), or give --prompt-tokens");
      const std::string text = flags.chat ? asked(flags) : flags.prompt;
      config.prompt = tokenizer->encode(text, {.special_tokens = true});
      if (flags.chat && tokenizer->eos()) {
        config.ends.push_back(*tokenizer->eos());
      }
    });
    FSDP_CHECK(!config.prompt.empty(), ErrorCode::kInvalidArgument, "--prompt is empty");
  }
  for (const std::int64_t token : config.prompt) {
    FSDP_CHECK(token >= 0 && token < vocab, ErrorCode::kInvalidArgument,
               "the prompt has the token ", token, ", outside the vocabulary of ", vocab);
  }
  const std::int64_t context = models::sizes(model).context;
  FSDP_CHECK(std::ssize(config.prompt) <= context, ErrorCode::kInvalidArgument, "the prompt has ",
             config.prompt.size(), " tokens, the model sees ", context,
             " at once, so its begin would be forgotten: shorten it");
  config.use_cache = !flags.no_cache;
  if (flags.ignore_end) {
    config.ends.clear();
  } else {
    const auto& ends = models::special_tokens(model).ends;
    config.ends.insert(config.ends.end(), ends.begin(), ends.end());
  }
}

/// Shows tokens as they come.
class Printer {
 public:
  /// Without a tokenizer, as numbers.
  Printer(std::shared_ptr<const tokens::Tokenizer> tokenizer, std::vector<std::int64_t> ends)
      : tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {}

  void operator()(std::int64_t token) {
    if (tokenizer_ == nullptr) {
      std::printf("%s%lld", is_first_ ? "" : " ", static_cast<long long>(token));
    } else if (std::find(ends_.begin(), ends_.end(), token) == ends_.end()) {
      waiting_ += tokenizer_->token(token).value_or("");
      show(complete_bytes());
    }
    is_first_ = false;
    std::fflush(stdout);
  }
  void finish() {
    show(waiting_.size());
    std::printf("\n");
  }

 private:
  void show(std::size_t bytes) {
    std::printf("%s", tokens::printable(waiting_.substr(0, bytes)).c_str());
    waiting_.erase(0, bytes);
  }

  /// All but a character of UTF-8 whose end is still to come.
  std::size_t complete_bytes() const {
    std::size_t begin = waiting_.size();
    while (begin > 0 && waiting_.size() - begin < 3) {
      const auto byte = static_cast<unsigned char>(waiting_[--begin]);
      const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
      if (byte < 0x80 || byte >= 0xc0) {
        return waiting_.size() - begin < length ? begin : waiting_.size();
      }
    }
    return waiting_.size();
  }

  std::shared_ptr<const tokens::Tokenizer> tokenizer_;
  std::vector<std::int64_t> ends_;
  std::string waiting_;
  bool is_first_ = true;
};

int generate_here(const GenerateFlags& flags) {
  const World world = init({.transport = flags.transport, .device = flags.device});
  const bool is_first = world.rank() == 0;
  try {
    const std::int64_t vocab = models::sizes(train::config_of(flags.config.path)).vocab;
    Printer printer(flags.speaks_numbers ? nullptr : tokenizer_of(flags, vocab), flags.config.ends);
    const auto show = [&](std::int64_t token) { printer(token); };
    if (is_first && !flags.speaks_numbers && !flags.chat) {
      std::printf("%s", flags.prompt.c_str());
    }
    train::generate(flags.config, world, show);
    if (is_first) {
      printer.finish();
    }
    return kSuccess;
  } catch (const std::exception& error) {
    world.publish_failure(error.what());
    throw;
  }
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
      "  fsdp generate smollm2 --prompt \"The capital of France is\" --top-p 0.9 --ranks 2\n"
      "  fsdp generate smollm2 --adapter runs/adapter --prompt \"And Moses\"\n"
      "\n"
      "Exit codes: 0 success, 1 a rank failed, 2 bad input (nothing was started).");
  return [flags, arguments] {
    resolve(*flags);
    const bool is_job = !job_variable().empty();
    return is_job || flags->ranks == 1 ? generate_here(*flags)
                                       : launch::run(own_ranks(arguments, flags->ranks));
  };
}

}  // namespace fsdp::apps
