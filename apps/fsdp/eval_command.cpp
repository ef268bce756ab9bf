// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

#include "bad_input.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"
#include "fsdp/comm/world.hpp"
#include "launch/launcher.hpp"
#include "own_ranks.hpp"
#include "places.hpp"
#include "train/dataset.hpp"
#include "train/evaluation.hpp"
#include "train/generation.hpp"
#include "train_data.hpp"

namespace fsdp::apps {
namespace {

constexpr std::int64_t kSequence = 512, kBatch = 4;

struct EvalFlags {
  train::TrainConfig config;
  DataFlags data;
  std::optional<std::int64_t> sequence;
  int ranks = 1;
};

void resolve(EvalFlags& flags) {
  train::TrainConfig& config = flags.config;
  as_bad_input([&] { comm::check_device(config.device); });
  need_path("PATH", config.init, Wanted::kModel);
  as_bad_input([&] { config.model = train::config_of(config.init); });
  if (!config.adapter.empty()) {
    need_path("--adapter", config.adapter, Wanted::kModel);
    as_bad_input([&] { archive::WeightSource::with_adapter(config.init, config.adapter); });
  }
  const std::int64_t context = models::sizes(config.model).context;
  config.sequence = flags.sequence.value_or(std::min(kSequence, context));
  FSDP_CHECK(config.sequence >= 1 && config.sequence <= context, ErrorCode::kInvalidArgument,
             "--seq is ", config.sequence, ", must be 1 to the model's context of ", context);
  use_data(config, flags.data, /*is_vocab_given=*/true);
  // All of it is for judging.
  config.validation = config.data;
  as_bad_input([&] {
    for (const train::DataSource& source : config.data) {
      for (const std::string& path : source.paths) {
        if (!source.is_samples && !config.any_bytes) {
          data::check_content(path);
        }
      }
    }
    train::detail::Dataset(config).check_vocabulary(models::sizes(config.model).vocab);
  });
}

int eval_here(const EvalFlags& flags) {
  const World world = init({.transport = flags.config.transport, .device = flags.config.device});
  try {
    const train::Evaluation found = train::evaluate(flags.config, world);
    if (world.rank() == 0) {
      std::printf("%lld tokens of %lld bytes, in rows of %lld\n",
                  static_cast<long long>(found.tokens), static_cast<long long>(found.bytes),
                  static_cast<long long>(flags.config.sequence));
      std::printf("per token  %.6f nats, perplexity %.4f\n", found.nats_per_token,
                  std::exp(found.nats_per_token));
      if (found.bytes > 0) {
        std::printf("per byte   %.6f nats, perplexity %.4f\n", found.nats_per_byte,
                    std::exp(found.nats_per_byte));
      }
    }
    return kSuccess;
  } catch (const std::exception& error) {
    world.publish_failure(error.what());
    throw;
  }
}

}  // namespace

Action add_eval(CLI::App& app, const Arguments& arguments) {
  auto flags = std::make_shared<EvalFlags>();
  train::TrainConfig& config = flags->config;
  config.batch = kBatch;
  CLI::App* command = app.add_subcommand("eval", "Judge saved weights by data, sharded over ranks");
  command->add_option("PATH", config.init, "Weights, as for fsdp generate")->required();
  command
      ->add_option("--data", flags->data.data,
                   "What to judge by, as for fsdp train; may be given several times")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--tokenizer", config.tokenizer, "As for fsdp train (default: that of PATH)");
  command->add_flag("--bytes", config.bytes, "Tokens are bytes");
  command->add_flag("--any-bytes", config.any_bytes, "Take --data that is no text");
  command->add_option("--adapter", config.adapter, "Directory of LoRA adapters to add");
  command->add_option("--seq", flags->sequence,
                      "Tokens of a row (default: 512, or the model's context)");
  command->add_option("--batch", config.batch, "Rows of a rank at a time")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--ranks", flags->ranks, "Ranks to start here (default: 1, or the job's)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--transport", config.transport, "How ranks talk; auto: shm on one host")
      ->check(CLI::IsMember(comm::transport_words()))
      ->capture_default_str();
  command->add_option("--device", config.device, "Where ranks compute: auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  command->footer(
      "Nats and perplexity per token and per byte of all targets: text in windows that do not\n"
      "overlap, each row by itself; of conversations the answers.\n"
      "\n"
      "Examples:\n"
      "  fsdp eval runs/model --data data/kjv.txt\n"
      "  fsdp eval smollm2 --adapter runs/adapter --data chats.jsonl --ranks 2\n"
      "\n"
      "Exit codes: 0 success, 1 a rank failed, 2 bad input (nothing was started).");
  return [flags, arguments] {
    resolve(*flags);
    const bool is_job = !job_variable().empty();
    return is_job || flags->ranks == 1 ? eval_here(*flags)
                                       : launch::run(own_ranks(arguments, flags->ranks));
  };
}

}  // namespace fsdp::apps
