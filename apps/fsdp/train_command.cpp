// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>

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
#include "train/generation.hpp"
#include "train/trainer.hpp"
#include "train_data.hpp"

namespace fsdp::apps {
namespace {

constexpr int kDefaultRanks = 2;
/// Added to the number of the signal that ended a run, as shells count.
constexpr int kStopped = 128;
/// Between SIGTERM and SIGKILL, when there is a checkpoint to save.
constexpr std::chrono::seconds kGraceForSaving{30};

/// Flags as given; what decides the model is laid over the preset afterwards.
struct TrainFlags {
  train::TrainConfig config;
  int ranks = 0;
  std::string preset = "default";
  std::optional<std::int64_t> layers, width, heads, sequence, vocab;
  std::optional<double> dropout, lr;
  std::string trace_steps = "3:5";
  std::optional<std::string> out_dtype;
  DataFlags data;
  std::optional<double> epochs;
  std::string schedule = "cosine", too_long = "cut", config_file;
  std::string strategy = "full-shard", deferral = "none";
  std::string param_dtype = "weights", reduce_dtype = "weights";
  bool tied = false, untied = false, train_adapter = false, no_pin = false;
  std::function<bool(const char*)> is_given;  ///< whether an option stands in the command line
  std::string optimizer = train::to_string(train::OptimizerKind::kAdamW);
  std::string dtype = train::to_string(train::WeightType::kFloat32);
};

void add_model_flags(CLI::App& command, TrainFlags& flags) {
  const auto group = command.add_option_group("Model");
  std::string names;
  for (const std::string& name : models::model_preset_names()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  auto* init = group->add_option(
      "--init", flags.config.init,
      "Published weights to begin with, and their config.json: a directory as Hugging Face writes "
      "it, a checkpoint, or a .gguf file of a Llama model");
  const auto from_nothing = [&](CLI::Option* option) { option->excludes(init); };
  from_nothing(group->add_option("--preset", flags.preset, "Sizes to start from: " + names)
                   ->capture_default_str());
  from_nothing(group->add_option("--layers", flags.layers, "Transformer blocks"));
  from_nothing(group->add_option("--width", flags.width, "Features per position"));
  from_nothing(group->add_option("--heads", flags.heads, "Attention heads; must divide the width"));
  group->add_option("--seq", flags.sequence,
                    "Tokens of a training sequence (default: the preset's; with --init 128)");
  from_nothing(group->add_option("--vocab", flags.vocab,
                                 "Number of tokens (default: the tokenizer's; 256 for bytes)"));
  group->add_option("--dropout", flags.dropout, "Dropout while training");
  auto* tied = group->add_flag("--tied", flags.tied, "The head uses the token embedding's weight");
  auto* untied = group->add_flag("--untied", flags.untied, "The head has a weight of its own");
  from_nothing(tied);
  from_nothing(untied->excludes(tied));
  group->add_option("--dtype", flags.dtype, "Type of the weights")
      ->check(CLI::IsMember({"float32", "float64"}))
      ->capture_default_str();
}

void add_training_flags(CLI::App& command, TrainFlags& flags) {
  train::TrainConfig& config = flags.config;
  const auto group = command.add_option_group("Training");
  const auto option = [&](const char* name, auto& value, const char* text) {
    return group->add_option(name, value, text)->capture_default_str();
  };
  auto* steps = option("--steps", config.steps, "Optimizer steps");
  group
      ->add_option("--epochs", flags.epochs,
                   "Steps as many as it takes to see the data so often, in place of --steps")
      ->check(at_least_zero())
      ->excludes(steps);
  group
      ->add_option("--max-hours", config.max_hours,
                   "End before the last step once so many hours have passed: evaluate and save as "
                   "at the end (default: never)")
      ->check(at_least_zero());
  option("--global-batch", config.global_batch, "Sequences of one step, over all ranks");
  group
      ->add_option("--batch", config.batch,
                   "Sequences of a rank in a micro-step (default: global batch / ranks); fewer "
                   "accumulate gradients")
      ->check(above_zero());
  group
      ->add_option("--accumulate", config.accumulate,
                   "Micro-steps of a step, in place of --batch: each rank takes global batch / "
                   "(ranks x this) sequences at a time")
      ->check(above_zero());
  group->add_option("--lr", flags.lr,
                    "Highest learning rate (default: 0.004; with --init 0.0001, with adapters "
                    "0.001)");
  group->add_option("--min-lr", config.min_lr, "Learning rate of the last step (default: lr / 10)")
      ->check(at_least_zero());
  group->add_option("--warmup", config.warmup, "Steps of warm-up (default: steps / 20)")
      ->check(at_least_zero());
  option("--schedule", flags.schedule,
         "How the rate falls after the warm-up: cosine, linear, constant (not at all), or wsd "
         "(only in the last --decay-steps)")
      ->check(CLI::IsMember({"cosine", "linear", "constant", "wsd"}));
  group
      ->add_option("--decay-steps", config.decay_steps,
                   "Last steps in which wsd falls to --min-lr (default: steps / 10)")
      ->check(at_least_zero());
  option("--weight-decay", config.weight_decay,
         "L2 for SGD, else decoupled; of matrices and embeddings, not of norms and biases");
  group->add_flag("--decay-all", config.decay_all, "Weight decay also of norms and biases");
  option("--beta1", config.beta1, "AdamW, Lion");
  option("--beta2", config.beta2, "AdamW, Lion");
  option("--eps", config.eps, "AdamW");
  group->add_option("--momentum", config.momentum, "SGD (default: 0) and Muon (default: 0.95)")
      ->check(at_least_zero());
  option("--clip", config.clip, "Largest global gradient norm; 0 clips nothing");
  option("--seed", config.seed, "Decides weights, order of data and sample");
  option("--optimizer", flags.optimizer,
         "The rule of the update; muon: matrices by Muon, embeddings, head and vectors by AdamW")
      ->check(CLI::IsMember({"adamw", "sgd", "lion", "muon"}));
}

void add_adapter_flags(CLI::App& command, TrainFlags& flags) {
  train::TrainConfig& config = flags.config;
  const auto group = command.add_option_group("Adapters");
  auto* rank = group->add_option(
      "--lora-rank", config.lora.rank,
      "Freeze the weights of --init and train low-rank adapters of this rank beside them");
  rank->check(above_zero());
  group
      ->add_option("--lora-alpha", config.lora.alpha, "What they add is multiplied by alpha / rank")
      ->needs(rank)
      ->capture_default_str();
  group
      ->add_option("--lora-targets", config.lora.targets,
                   "Projections that get one (default: q_proj,v_proj; GPT-2: c_attn)")
      ->delimiter(',')
      ->needs(rank);
  group
      ->add_option("--adapter", config.adapter,
                   "Directory of adapters: added to the weights of --init, unless "
                   "--train-adapter")
      ->excludes(rank);
  group->add_flag("--train-adapter", flags.train_adapter, "Go on training those of --adapter");
}

void add_other_flags(CLI::App& command, TrainFlags& flags) {
  train::TrainConfig& config = flags.config;
  const auto output = command.add_option_group("Data and output");
  command.add_option("--config", flags.config_file,
                     "TOML file of these options, such as lr = 1e-4; the command line goes first");
  command.add_flag("--dry-run", config.dry_run,
                   "Do all but train: check, shard, show what the run is about; write nothing");
  const auto each = [](CLI::Option* option) { return option->allow_extra_args(false); };
  each(output->add_option(
      "--data", flags.data.data,
      "Text (.txt), JSON lines (.jsonl) of text, prompt and completion, or messages, both also .gz "
      "and .zst, token file (.bin), directory, or pattern; may be given several times (default: "
      "the King James Bible)"));
  output
      ->add_option("--data-weights", flags.data.weights,
                   "How often an epoch takes each --data, such as 1,0.5 (default: all once)")
      ->delimiter(',')
      ->allow_extra_args(false);
  each(output->add_option("--val-data", flags.data.validation,
                          "What to validate on, as --data (default: the last twentieth of each)"));
  output
      ->add_option("--too-long", flags.too_long,
                   "Conversations longer than --seq: cut them, or drop them; counted")
      ->check(CLI::IsMember({"cut", "drop"}))
      ->capture_default_str();
  output->add_flag("--any-bytes", config.any_bytes,
                   "Take --data that is no text in UTF-8: compressed files, tables, JSON and the "
                   "like, byte for byte");
  auto* tokenizer = output->add_option(
      "--tokenizer", config.tokenizer,
      "A model's directory, tokenizer.json or another file that fsdp tokenize takes "
      "(default: that of --init, else tokens are bytes); text is tokenized once and "
      "kept in a cache");
  output
      ->add_flag("--bytes", config.bytes,
                 "Tokens are the bytes of the text, also with --init of a model that has, or "
                 "lacks, a tokenizer")
      ->excludes(tokenizer);
  output
      ->add_option("--eval-every", config.eval_every,
                   "Steps between evaluations; 0: at the end only")
      ->capture_default_str();
  output
      ->add_option("--eval-batches", config.eval_batches,
                   "Global batches of an evaluation; ten times as many at the end")
      ->capture_default_str();
  output->add_flag("--keep-best", config.keep_best,
                   "--out gets the weights with the lowest validation loss, not the last ones");
  output->add_option("--tensorboard", config.tensorboard,
                     "Directory for an event file that TensorBoard shows");
  output->add_option("--log", config.log,
                     "New file for one JSON object per step; --resume appends to that of its run");
  output->add_option("--out", config.out, "Directory for model.safetensors; \"\" saves nothing")
      ->capture_default_str();
  output
      ->add_option("--out-dtype", flags.out_dtype,
                   "Type of the weights in --out (default: that of the weights of --init where it "
                   "is bfloat16 or float16, else --dtype)")
      ->check(CLI::IsMember({"float32", "float64", "bfloat16", "bf16", "float16", "fp16"}));
  output->add_option("--save", config.save,
                     "Directory for checkpoints, from which --resume goes on; without --resume one "
                     "that has none");
  output
      ->add_option("--save-every", config.save_every,
                   "Steps between checkpoints; 0: after the last step only")
      ->capture_default_str();
  output->add_option("--keep", config.keep, "Complete checkpoints that stay; 0: all")
      ->capture_default_str();
  output->add_flag("--resume", config.resume,
                   "Go on from the newest complete checkpoint in --save; begin when there is none");
  output->add_option("--sample", config.sample, "Tokens to draw at the end")->capture_default_str();
  output->add_option("--prompt", config.prompt, "What the sample begins with")
      ->capture_default_str();

  const auto sharding = command.add_option_group("Sharding");
  sharding
      ->add_option("--ranks", flags.ranks,
                   "Ranks to start here; 1 runs in this process (default: 2, or the job's)")
      ->check(CLI::Range(1, 4096));
  sharding
      ->add_option("--strategy", flags.strategy,
                   "What is spread over the ranks. full-shard: weights, gradients, optimizer; "
                   "shard-grad: weights stay whole from forward to backward; replicate: nothing; "
                   "hybrid: --shard ranks hold a replica; hybrid-optimizer: the same, and the "
                   "optimizer over all; secondary-shard: backward gathers inside of --shard ranks")
      ->check(CLI::IsMember({"full-shard", "shard-grad", "replicate", "hybrid", "hybrid-optimizer",
                             "secondary-shard"}))
      ->capture_default_str();
  sharding->add_option("--shard", config.shard, "Ranks that hold one replica together")
      ->check(above_zero());
  sharding
      ->add_option("--param-dtype", flags.param_dtype,
                   "Type in which weights are gathered and operators take them (default: --dtype)")
      ->check(CLI::IsMember({"bfloat16", "bf16", "float16", "fp16"}));
  sharding
      ->add_option("--reduce-dtype", flags.reduce_dtype,
                   "Type in which gradients travel; they are added up in float32 "
                   "(default: --dtype)")
      ->check(CLI::IsMember({"bfloat16", "bf16", "float16", "fp16"}));
  sharding
      ->add_option("--defer", flags.deferral,
                   "What waits for the last micro-step: no reduction, those over replicas, or all")
      ->check(CLI::IsMember({"none", "replicas", "all"}))
      ->capture_default_str();
  sharding->add_flag("--recompute", config.recompute,
                     "Keep no activations inside of blocks; backward computes them again");
  sharding->add_flag("--no-pin", flags.no_pin,
                     "Let the ranks started here share all cores (default: each keeps to its own)");
  sharding->add_option("--prefetch", config.prefetch, "Units gathered ahead of the computation")
      ->capture_default_str();
  sharding->add_flag("--keep-root", config.keep_root,
                     "Keep embeddings and head gathered in a step");
  sharding->add_flag("--offload", config.offload,
                     "Keep shards, gradients and optimizer state in the host's memory; changes "
                     "nothing where the model is on the CPU");
  auto* trace = sharding->add_option(
      "--trace", config.trace,
      "Directory for a timeline of some steps, which ui.perfetto.dev and chrome://tracing open");
  sharding->add_option("--trace-steps", flags.trace_steps, "The steps in it, FIRST:LAST")
      ->needs(trace)
      ->capture_default_str();
  sharding
      ->add_option("--transport", config.transport,
                   "How ranks talk; auto: shm on one host, shm+gloo on several of several ranks "
                   "each, else gloo; on a device nccl, or staged where that is missing")
      ->check(CLI::IsMember(comm::transport_words()))
      ->capture_default_str();
  sharding
      ->add_option("--device", config.device,
                   "Where ranks compute: auto (an accelerator if LibTorch sees one), cpu, cuda, or "
                   "cuda:N for all of them; cuda takes the device of a rank's number on its host")
      ->capture_default_str();
}

/// Lays the flags over the preset.
models::ModelConfig new_model(const TrainFlags& flags) {
  models::ModelConfig config =
      models::resized(models::model_preset(flags.preset), flags.width, flags.heads);
  std::visit(
      [&](auto& model) {
        model.layers = flags.layers.value_or(model.layers);
        model.vocab = flags.vocab.value_or(model.vocab);
        model.tied = flags.untied ? false : flags.tied ? true : model.tied;
      },
      config);
  return config;
}

constexpr double kLearningRateOfPublished = 1e-4, kLearningRateOfAdapters = 1e-3;
constexpr std::int64_t kSequenceOfPublished = 128;

/// An option that would decide nothing was meant to.
void check_use(const TrainFlags& flags) {
  const train::TrainConfig& config = flags.config;
  const auto& rule = flags.optimizer;
  struct Unused {
    const char* option;
    bool is_unused;
    std::string why;
  };
  const Unused all[] = {
      {"--prompt", config.sample == 0, "--sample 0 draws no text"},
      {"--out-dtype", config.out.empty() || config.lora.rank > 0,
       config.out.empty() ? "--out \"\" saves no weights" : "adapters keep their type"},
      {"--min-lr", flags.schedule == "constant", "--schedule constant stays at --lr"},
      {"--decay-steps", flags.schedule != "wsd", "--schedule " + flags.schedule + " has none"},
      {"--decay-all", rule == "muon", "--optimizer muon has one decay for all"},
      {"--keep", config.save.empty(), "without --save DIR no checkpoint is kept"},
      {"--beta1", rule == "sgd", "--optimizer sgd takes --momentum"},
      {"--beta2", rule == "sgd", "--optimizer sgd takes --momentum"},
      {"--eps", rule == "sgd" || rule == "lion", "--optimizer " + rule + " has none"},
      {"--prefetch", flags.strategy == "replicate", "--strategy replicate gathers nothing"}};
  for (const Unused& option : all) {
    FSDP_CHECK(!option.is_unused || !flags.is_given(option.option), ErrorCode::kInvalidArgument,
               option.option, " decides nothing here: ", option.why, "; leave it out");
  }
}

/// Begins with a model that is there.
void resolve_init(TrainFlags& flags) {
  train::TrainConfig& config = flags.config;
  need_path("--init", config.init, Wanted::kModel);
  as_bad_input([&] { config.model = train::config_of(config.init); });
  if (!config.adapter.empty()) {
    need_path("--adapter", config.adapter, Wanted::kModel);
    as_bad_input([&] { archive::WeightSource::with_adapter(config.init, config.adapter); });
  }
  if (flags.train_adapter) {
    FSDP_CHECK(!config.adapter.empty(), ErrorCode::kInvalidArgument,
               "--train-adapter needs --adapter DIR");
    as_bad_input([&] { config.lora = train::adapter_of(config.adapter); });
  }
  if (config.lora.rank > 0 && config.lora.targets.empty()) {
    config.lora.targets = models::default_adapter_targets(config.model);
  }
  config.sequence =
      flags.sequence.value_or(std::min(kSequenceOfPublished, models::sizes(config.model).context));
  config.lr =
      flags.lr.value_or(config.lora.rank > 0 ? kLearningRateOfAdapters : kLearningRateOfPublished);
}

void resolve_new(TrainFlags& flags) {
  FSDP_CHECK(!flags.train_adapter, ErrorCode::kInvalidArgument,
             "--train-adapter needs --init and --adapter");
  train::TrainConfig& config = flags.config;
  config.model = new_model(flags);
  config.sequence = flags.sequence.value_or(models::sizes(config.model).context);
  config.lr = flags.lr.value_or(config.lr);
  std::visit([&](auto& model) { model.context = std::max(model.context, config.sequence); },
             config.model);
}

/// As many steps as see the data so often.
void use_epochs(train::TrainConfig& config, double epochs) {
  as_bad_input([&] {
    FSDP_CHECK(epochs > 0 && config.sequence >= 1 && config.global_batch >= 1,
               ErrorCode::kInvalidArgument, "--epochs is ", epochs, ", --seq ", config.sequence,
               " and --global-batch ", config.global_batch, ": all must be positive");
    const train::detail::Dataset data(config);
    const double rows = epochs * static_cast<double>(data.rows(train::detail::Part::kTraining));
    const double steps = std::ceil(rows / static_cast<double>(config.global_batch));
    constexpr double kMost = 1e11;
    FSDP_CHECK(steps <= kMost, ErrorCode::kInvalidArgument, "--epochs ", epochs, " are ", steps,
               " steps");
    config.steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
  });
}

void resolve(TrainFlags& flags) {
  check_use(flags);
  as_bad_input([&] { comm::check_device(flags.config.device); });
  if (flags.config.init.empty()) {
    resolve_new(flags);
  } else {
    resolve_init(flags);
  }
  if (flags.dropout) {
    std::visit([&](auto& model) { model.dropout = *flags.dropout; }, flags.config.model);
  }
  flags.config.optimizer = train::parse_optimizer(flags.optimizer);
  std::tie(flags.config.trace_first, flags.config.trace_last) =
      train::parse_steps(flags.trace_steps);
  flags.config.strategy = train::parse_strategy(flags.strategy);
  flags.config.micro_step_sync = train::parse_deferral(flags.deferral);
  flags.config.param_dtype = train::parse_travel_type(flags.param_dtype);
  flags.config.reduce_dtype = train::parse_travel_type(flags.reduce_dtype);
  flags.config.dtype =
      flags.dtype == "float64" ? train::WeightType::kFloat64 : train::WeightType::kFloat32;
  std::string own_type = flags.dtype;
  if (!flags.config.init.empty() && flags.dtype == train::to_string(train::WeightType::kFloat32)) {
    as_bad_input([&] { own_type = train::weight_type_of(flags.config.init); });
  }
  flags.config.out_dtype = train::parse_saved_type(flags.out_dtype.value_or(own_type));
  flags.config.schedule = train::parse_schedule(flags.schedule);
  flags.config.too_long = flags.too_long == "drop" ? data::TooLong::kDrop : data::TooLong::kCut;
  if (flags.data.data.empty()) {
    flags.data.data = {default_text()};
  }
  if (flags.config.dry_run) {  // which writes nothing
    flags.config.save = flags.config.log = flags.config.tensorboard = "";
    flags.config.save_every = 0;
    flags.config.resume = false;
  }
  use_data(flags.config, flags.data, flags.vocab.has_value() || !flags.config.init.empty());
  if (flags.epochs) {
    use_epochs(flags.config, *flags.epochs);
  }
  if (flags.is_given("--prompt")) {
    check_prompt(flags.config);
  }
}

int train_here(const TrainFlags& flags) {
  const World world = init({.transport = flags.config.transport, .device = flags.config.device});
  FSDP_CHECK(flags.ranks == 0 || flags.ranks == world.size(), ErrorCode::kInvalidArgument,
             "--ranks is ", flags.ranks, " but the job has ", world.size(), " ranks");
  try {
    const train::TrainResult result = train::train(flags.config, world);
    return result.is_stopped ? kStopped + result.signal : kSuccess;
  } catch (const std::exception& error) {
    // The peers would only see a closed connection.
    world.publish_failure(error.what());
    throw;
  }
}

int launch_ranks(const TrainFlags& flags, const Arguments& arguments, int ranks) {
  launch::LaunchOptions options = own_ranks(arguments, ranks);
  options.pins_ranks = !flags.no_pin;
  if (!flags.config.save.empty()) {
    options.grace = kGraceForSaving;
  }
  return launch::run(options);
}

}  // namespace

Action add_train(CLI::App& app, const Arguments& arguments) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command =
      app.add_subcommand("train", "Train a language model on text, sharded over ranks");
  add_model_flags(*command, *flags);
  add_training_flags(*command, *flags);
  add_adapter_flags(*command, *flags);
  add_other_flags(*command, *flags);
  command->footer(
      "Examples:\n"
      "  fsdp train\n"
      "  fsdp train --data notes/ --steps 500 --log run.jsonl --out runs/notes\n"
      "  fsdp train --ranks 4 --global-batch 64 --batch 8      2 micro-steps per step\n"
      "  fsdp train --preset gpt2 --data tokens.bin --batch 1\n"
      "  fsdp train --tokenizer models/gpt2                    tokens of GPT-2 in place of bytes\n"
      "  fsdp train --preset llama --steps 500                 a small Llama, for bytes\n"
      "  fsdp train --init smollm2 --batch 1                   fine-tunes published weights\n"
      "  fsdp train --init smollm2 --data chats.jsonl --epochs 2   on the answers of "
      "conversations\n"
      "  fsdp train --init smollm2 --batch 1 --lora-rank 8 --out runs/adapter\n"
      "  fsdp run -n 2 fsdp train                              inside a job: joins it\n"
      "  fsdp train --save runs/mine --save-every 100 --resume the same line starts and goes on\n"
      "\n"
      "Exit codes: 0 success, 1 a rank failed or the loss is not finite, 2 bad input (no step was\n"
      "taken, nothing is overwritten), 143 or 130 stopped by\n"
      "SIGTERM or Ctrl-C (with --save: after a checkpoint; a second Ctrl-C ends at once).");
  flags->is_given = [command](const char* option) { return command->count(option) > 0; };
  return [flags, arguments] {
    resolve(*flags);
    if (!job_variable().empty()) {
      return train_here(*flags);
    }
    const int ranks = flags->ranks == 0 ? kDefaultRanks : flags->ranks;
    train::check(flags->config, ranks);
    if (!flags->config.dry_run) {
      train::check_earlier_run(flags->config);
    }
    return ranks == 1 ? train_here(*flags) : launch_ranks(*flags, arguments, ranks);
  };
}

}  // namespace fsdp::apps
