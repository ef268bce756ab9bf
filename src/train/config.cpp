// SPDX-License-Identifier: Apache-2.0
#include "train/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/text.hpp"
#include "fsdp/archive/index.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/memory/ledger.hpp"
#include "train/dataset.hpp"
#include "train/model.hpp"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

/// Collects problems so that a person sees all of them at once.
class Problems {
 public:
  template <class... Parts>
  void check(bool good, const Parts&... parts) {
    if (!good) {
      add((std::ostringstream() << ... << parts).str());
    }
  }

  /// Runs a check that throws.
  template <class Action>
  void gather(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      add(error.text());
    }
  }

  void raise_if_any() const { FSDP_CHECK(text_.empty(), ErrorCode::kInvalidArgument, text_); }

 private:
  void add(const std::string& text) { text_ += (text_.empty() ? "" : "; ") + text; }
  std::string text_;
};

// Their products stay far from the largest integer.
constexpr std::int64_t kLimit = std::int64_t{1} << 24;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 38;

/// The sequences of a step, over ranks and micro-steps. Divides, because products of numbers that
/// nobody has checked yet overflow.
void check_division(const TrainConfig& config, int ranks, Problems& problems) {
  const std::int64_t batch = config.batch;
  if (ranks < 1 || config.global_batch < 1 || batch < 0) {
    return;  // told elsewhere
  }
  const bool divides = config.global_batch % ranks == 0;
  const std::int64_t of_a_rank = config.global_batch / ranks;
  if (batch == 0 && config.accumulate <= 1) {
    problems.check(divides, "--global-batch ", config.global_batch, " is not divisible by ", ranks,
                   " ranks");
  } else if (batch == 0) {
    problems.check(divides && of_a_rank % config.accumulate == 0, "--global-batch ",
                   config.global_batch, " is not divisible by ", ranks, " ranks x --accumulate ",
                   config.accumulate);
  } else if (config.accumulate > 0) {
    problems.check(divides && of_a_rank % batch == 0 && of_a_rank / batch == config.accumulate,
                   "--global-batch ", config.global_batch, " is not ", ranks, " ranks x --batch ",
                   batch, " x --accumulate ", config.accumulate, "; leave one of them out");
  } else {
    problems.check(divides && of_a_rank % batch == 0, "--global-batch ", config.global_batch,
                   " is not divisible by ", ranks, " ranks x --batch ", batch);
  }
}

void check_numbers(const TrainConfig& config, int ranks, Problems& problems) {
  const auto positive = [&](const char* flag, std::int64_t value) {
    problems.check(value >= 1, flag, " is ", value, ", must be at least 1");
  };
  const auto limited = [&](const char* flag, std::int64_t value, std::int64_t limit = kLimit) {
    problems.check(value <= limit, flag, " is ", value, ", must be at most ", limit);
  };
  const auto not_negative = [&](const char* flag, double value) {
    problems.check(std::isfinite(value) && value >= 0, flag, " is ", value,
                   ", must be 0 or a positive number");
  };
  positive("--ranks", ranks);
  positive("--steps", config.steps);
  positive("--seq", config.sequence);
  positive("--global-batch", config.global_batch);
  problems.check(config.batch >= 0, "--batch is ", config.batch, ", must be at least 1");
  limited("--global-batch", config.global_batch);
  limited("--batch", config.batch);
  limited("--eval-batches", config.eval_batches);
  limited("--sample", config.sample);
  limited("--steps", config.steps, kMostSteps);
  problems.check(config.sequence <= models::sizes(config.model).context, "--seq ", config.sequence,
                 " does not fit the model's context of ", models::sizes(config.model).context);
  check_division(config, ranks, problems);
  problems.check(std::isfinite(config.lr) && config.lr > 0, "--lr is ", config.lr,
                 ", must be positive");
  problems.check(config.effective_min_lr() <= config.lr, "--min-lr ", config.min_lr,
                 " is above --lr ", config.lr);
  problems.check(config.effective_warmup() <= config.steps, "--warmup ", config.warmup,
                 " is longer than --steps ", config.steps);
  problems.check(config.effective_decay_steps() <= config.steps, "--decay-steps ",
                 config.decay_steps, " is longer than --steps ", config.steps);
  not_negative("--max-hours", config.max_hours);
  for (const DataSource& source : config.data) {
    problems.check(std::isfinite(source.weight) && source.weight > 0 && source.weight <= 1e6,
                   "--data-weights has ", source.weight, ", must be above 0 and at most a million");
  }
  problems.check(!config.keep_best || !config.out.empty(),
                 "--keep-best without --out DIR keeps nothing");
  not_negative("--weight-decay", config.weight_decay);
  not_negative("--clip", config.clip);
  not_negative("--eps", config.eps);
  problems.check(config.beta1 >= 0 && config.beta1 < 1, "--beta1 is ", config.beta1,
                 ", must be at least 0 and below 1");
  problems.check(config.beta2 >= 0 && config.beta2 < 1, "--beta2 is ", config.beta2,
                 ", must be at least 0 and below 1");
  problems.check(config.momentum < 0 || config.optimizer == OptimizerKind::kSgd ||
                     config.optimizer == OptimizerKind::kMuon,
                 "--momentum is for sgd and muon; ", to_string(config.optimizer),
                 " averages by --beta1 and --beta2");
  problems.check(std::isfinite(config.momentum) && config.momentum < 1, "--momentum is ",
                 config.momentum, ", must be at least 0 and below 1");
  not_negative("--eval-every", static_cast<double>(config.eval_every));
  positive("--eval-batches", config.eval_batches);
  not_negative("--sample", static_cast<double>(config.sample));
  problems.check(config.sample == 0 || !config.prompt.empty(), "--prompt is empty");
  problems.check(config.prefetch >= 0 && config.prefetch <= 64, "--prefetch is ", config.prefetch,
                 ", must be 0 to 64");
  not_negative("--save-every", static_cast<double>(config.save_every));
  not_negative("--keep", config.keep);
  problems.check(
      config.trace.empty() || (config.trace_first >= 1 && config.trace_first <= config.trace_last &&
                               config.trace_last <= config.steps),
      "--trace-steps ", config.trace_first, ":", config.trace_last,
      " must be steps of this run, 1 to ", config.steps, ", the first one first");
  problems.check(config.save_every == 0 || !config.save.empty(),
                 "--save-every without --save DIR saves nothing");
  problems.check(!config.resume || !config.save.empty(),
                 "--resume needs --save DIR, where the checkpoints are");
  problems.check(std::ranges::count(comm::transport_words(), config.transport) == 1,
                 "--transport is '", config.transport, "', must be ", comm::transport_words_text());
}

/// Strategies, meshes and types that make no sense together.
void check_sharding(const TrainConfig& config, int ranks, Problems& problems) {
  problems.check(config.accumulate >= 0 && config.accumulate <= kLimit, "--accumulate is ",
                 config.accumulate, ", must be at least 1");
  if (config.has_mesh()) {
    problems.check(config.shard >= 1, "--strategy ", to_string(config.strategy),
                   " needs --shard N, the number of ranks that hold one replica together");
    problems.check(config.shard < 1 || ranks % config.shard == 0, "--shard ", config.shard,
                   " does not divide ", ranks, " ranks");
    problems.check(config.transport != "c10d" || config.shard == 1 || config.shard == ranks,
                   "--strategy ", to_string(config.strategy),
                   " needs groups of ranks, which --transport c10d does not have; use gloo or shm");
  } else {
    problems.check(config.shard == 0, "--shard ", config.shard, " is for the strategies hybrid, ",
                   "hybrid-optimizer and secondary-shard; ", to_string(config.strategy),
                   " uses all ranks");
  }
  problems.check(!config.keep_root || config.strategy != Strategy::kReplicate,
                 "--keep-root with --strategy replicate: nothing is gathered there");
  const bool is_low =
      config.param_dtype != TravelType::kAsWeights || config.reduce_dtype != TravelType::kAsWeights;
  problems.check(!is_low || config.dtype == WeightType::kFloat32,
                 "--param-dtype and --reduce-dtype are for float32 weights, --dtype is ",
                 to_string(config.dtype));
  const bool accumulates = config.accumulate > 1 || (config.batch > 0 && ranks >= 1 &&
                                                     config.batch < config.global_batch / ranks);
  problems.check(
      config.micro_step_sync == GradientSync::kEveryBackward || accumulates,
      "--defer without --accumulate or --batch: a step of one micro-step defers nothing");
  problems.check(config.micro_step_sync != GradientSync::kDeferReplicate ||
                     config.strategy == Strategy::kHybrid ||
                     config.strategy == Strategy::kHybridOptimizer,
                 "--defer replicas is for hybrid strategies; ", to_string(config.strategy),
                 " has no replicas of its own");
}

/// Everything about adapters that is known before a model is built.
void check_lora(const TrainConfig& config, Problems& problems) {
  const format::LoRAConfig& lora = config.lora;
  problems.check(lora.rank >= 0 && lora.rank <= kLimit, "--lora-rank is ", lora.rank,
                 ", must be 0 to ", kLimit);
  problems.check(lora.rank == 0 || !config.init.empty(),
                 "--lora-rank without --init would freeze weights that have learnt nothing");
  problems.check(lora.rank == 0 || (std::isfinite(lora.alpha) && lora.alpha > 0),
                 "--lora-alpha is ", lora.alpha, ", must be positive");
  problems.check(lora.rank == 0 || !lora.targets.empty(), "--lora-targets is empty");
  problems.check(lora.dropout == 0, "the adapters in '", config.adapter,
                 "' were trained with a dropout of ", lora.dropout,
                 ", which this trainer does not have; set lora_dropout to 0 in their ",
                 format::kAdapterConfig, " to go on without");
  problems.check(config.adapter.empty() || !config.init.empty(),
                 "--adapter without --init: the adapters belong to a model");
}

void check_data(const TrainConfig& config, Problems& problems) {
  problems.gather([&] {
    for (const std::vector<DataSource>* sources : {&config.data, &config.validation}) {
      for (const DataSource& source : *sources) {
        for (const std::string& path : source.paths) {
          if (!source.is_samples && !config.any_bytes) {
            data::check_content(path);
          }
        }
      }
    }
    if (config.sequence >= 1) {
      const detail::Dataset data(config);
      data.check_vocabulary(models::sizes(config.model).vocab);
    }
  });
}

/// What there is of a path: itself, or the directory in which the rest would be made.
fs::path existing_part(const std::string& path) {
  std::error_code ignored;
  fs::path place = fs::absolute(path);
  while (fs::symlink_status(place, ignored).type() == fs::file_type::not_found &&
         place.has_relative_path()) {
    place = place.parent_path();
  }
  return place;
}

/// Two spellings of one place, also of one that is not there yet.
bool are_same(const std::string& left, const std::string& right) {
  const auto plain = [](const std::string& path) {
    std::error_code ignored;
    const fs::path place = fs::weakly_canonical(fs::absolute(path), ignored).lexically_normal();
    return place.has_filename() ? place : place.parent_path();
  };
  return plain(left) == plain(right);
}

/// One that can be written, or made.
void check_directory(const char* flag, const std::string& path, Problems& problems) {
  if (path.empty()) {
    return;
  }
  const fs::path place = existing_part(path);
  // By way of the error code: a folder that may not be looked into is a problem, no exception.
  std::error_code error;
  const bool is_directory = fs::is_directory(place, error);
  const bool is_good = is_directory && ::access(place.c_str(), W_OK | X_OK) == 0;
  problems.check(is_good, flag, " '", path, "' is not a directory that can be written",
                 is_directory && place != fs::absolute(path)
                     ? ", nor is '" + place.string() + "', in which it would be made"
                     : "",
                 error ? ": " + error.message() : "");
}

/// Weights lie in one file: others in the same directory would be read in their place.
void check_model_directory(const TrainConfig& config, Problems& problems) {
  if (config.out.empty() || config.lora.rank > 0) {
    return;
  }
  std::error_code ignored;
  const fs::path out(config.out);
  for (const char* first : {"model.safetensors.index.json", archive::kIndexName}) {
    problems.check(!fs::exists(out / first, ignored), "--out '", config.out, "' holds ", first,
                   ", whose weights would be read in place of this run's: name another directory");
  }
  const fs::path init = fs::is_directory(config.init, ignored)
                            ? fs::path(config.init)
                            : fs::path(config.init).parent_path();
  problems.check(config.init.empty() || !fs::equivalent(out, init, ignored), "--out '", config.out,
                 "' is where --init reads from, whose weights would be overwritten: name another "
                 "directory");
  problems.check(config.save.empty() || !are_same(config.out, config.save),
                 "--out and --save "
                 "are both '",
                 config.out,
                 "', where weights at the end would hide later checkpoints: name two directories");
  problems.gather([&] {
    const auto written = detail::model_documents(config);
    std::string others;
    for (const auto& entry : fs::directory_iterator(out, ignored)) {
      const std::string name = entry.path().filename().string();
      if (detail::is_of_tokenizer(name) && !written.contains(name)) {
        base::append_to_list(others, name);
      }
    }
    FSDP_CHECK(others.empty(), ErrorCode::kInvalidArgument, "--out '", config.out,
               "' holds another model's tokenizer (", others,
               "), with which this one would be read: name another directory, or remove it");
  });
}

/// Room for what is sure to be written: one checkpoint, and the model.
void check_room(const TrainConfig& config, Problems& problems) {
  const std::int64_t weights =
      models::parameter_count(config.model) * (config.dtype == WeightType::kFloat64 ? 8 : 4);
  const bool all_learn = config.lora.rank == 0;
  const int moments = !all_learn                                  ? 0
                      : config.optimizer == OptimizerKind::kAdamW ? 2
                      : config.optimizer == OptimizerKind::kSgd && config.effective_momentum() == 0
                          ? 0
                          : 1;
  const auto check = [&](const char* flag, const std::string& path, std::int64_t bytes) {
    std::error_code error;
    const fs::space_info space =
        path.empty() ? fs::space_info{} : fs::space(existing_part(path), error);
    // Some network file systems do not know.
    const bool is_known = !error && space.capacity > 0;
    problems.check(!is_known || space.available >= static_cast<std::uintmax_t>(bytes), flag, " '",
                   path, "' needs ", memory::format_bytes(bytes), ", its disk has ",
                   memory::format_bytes(static_cast<std::int64_t>(is_known ? space.available : 0)),
                   " left");
  };
  check("--out", config.out,
        all_learn ? models::parameter_count(config.model) * bytes_of(config.out_dtype) : 0);
  check("--save", config.save, weights * (1 + moments));
}

void check_outputs(const TrainConfig& config, Problems& problems) {
  std::error_code error;
  check_directory("--out", config.out, problems);
  check_directory("--save", config.save, problems);
  check_model_directory(config, problems);
  check_room(config, problems);
  if (!config.log.empty()) {
    const fs::path parent = fs::absolute(config.log).parent_path();
    const bool exists = fs::exists(config.log, error);
    problems.check(!error, "--log '", config.log, "' cannot be written: ", error.message());
    const bool has_parent = fs::is_directory(parent, error);
    problems.check(
        exists ? fs::is_regular_file(config.log, error) || fs::is_character_file(config.log, error)
               : has_parent,
        "--log '", config.log, "' cannot be written",
        exists ? "" : ": there is no directory '" + parent.string() + "'");
    problems.check(
        ::access((exists ? config.log : parent.string()).c_str(), W_OK) == 0 || !has_parent,
        "--log '", config.log, "' cannot be written: permission denied");
  }
}

}  // namespace

const char* to_string(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW: return "adamw";
    case OptimizerKind::kSgd: return "sgd";
    case OptimizerKind::kLion: return "lion";
    case OptimizerKind::kMuon: return "muon";
  }
  return "unknown";
}

OptimizerKind parse_optimizer(const std::string& word) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kSgd, OptimizerKind::kLion, OptimizerKind::kMuon}) {
    if (word == to_string(kind)) {
      return kind;
    }
  }
  fail(ErrorCode::kInvalidArgument, "--optimizer is '", word,
       "', must be adamw, sgd, lion or muon");
}

const char* to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kLinear: return "linear";
    case ScheduleKind::kConstant: return "constant";
    case ScheduleKind::kWsd: return "wsd";
    case ScheduleKind::kCosine: break;
  }
  return "cosine";
}

const char* to_string(WeightType type) {
  return type == WeightType::kFloat32 ? "float32" : "float64";
}

namespace {

/// Finds a word in a table of what it stands for.
template <class T, std::size_t n>
T parse(const char* flag, const std::string& word, const std::pair<const char*, T> (&table)[n]) {
  std::string known;
  for (const auto& [name, value] : table) {
    if (word == name) {
      return value;
    }
    base::append_to_list(known, name);
  }
  fail(ErrorCode::kInvalidArgument, flag, " is '", word, "', must be one of ", known);
}

}  // namespace

const char* to_string(SavedType type) {
  switch (type) {
    case SavedType::kFloat64: return "float64";
    case SavedType::kBFloat16: return "bfloat16";
    case SavedType::kFloat16: return "float16";
    case SavedType::kFloat32: break;
  }
  return "float32";
}

SavedType parse_saved_type(const std::string& word) {
  return parse<SavedType>("--out-dtype", word,
                          {{"float32", SavedType::kFloat32},
                           {"float64", SavedType::kFloat64},
                           {"bfloat16", SavedType::kBFloat16},
                           {"bf16", SavedType::kBFloat16},
                           {"float16", SavedType::kFloat16},
                           {"fp16", SavedType::kFloat16}});
}

std::int64_t bytes_of(SavedType type) {
  switch (type) {
    case SavedType::kFloat64: return 8;
    case SavedType::kBFloat16:
    case SavedType::kFloat16: return 2;
    case SavedType::kFloat32: break;
  }
  return 4;
}

ScheduleKind parse_schedule(const std::string& word) {
  return parse<ScheduleKind>("--schedule", word,
                             {{"cosine", ScheduleKind::kCosine},
                              {"linear", ScheduleKind::kLinear},
                              {"constant", ScheduleKind::kConstant},
                              {"wsd", ScheduleKind::kWsd}});
}

TravelType parse_travel_type(const std::string& word) {
  return parse<TravelType>("the type", word,
                           {{"weights", TravelType::kAsWeights},
                            {"bfloat16", TravelType::kBFloat16},
                            {"bf16", TravelType::kBFloat16},
                            {"float16", TravelType::kFloat16},
                            {"fp16", TravelType::kFloat16}});
}

Strategy parse_strategy(const std::string& word) {
  std::string known;
  for (int i = 0; i < kStrategies; ++i) {
    const auto strategy = static_cast<Strategy>(i);
    if (word == to_string(strategy)) {
      return strategy;
    }
    base::append_to_list(known, to_string(strategy));
  }
  fail(ErrorCode::kInvalidArgument, "--strategy is '", word, "', must be one of ", known);
}

GradientSync parse_deferral(const std::string& word) {
  return parse<GradientSync>("--defer", word,
                             {{"none", GradientSync::kEveryBackward},
                              {"replicas", GradientSync::kDeferReplicate},
                              {"all", GradientSync::kDeferAll}});
}

std::pair<std::int64_t, std::int64_t> parse_steps(const std::string& word) {
  const std::size_t colon = word.find(':');
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, status] = std::from_chars(digits.data(), end, value);
    FSDP_CHECK(status == std::errc{} && stop == end && value > 0, ErrorCode::kInvalidArgument,
               "--trace-steps is '", word, "', must be FIRST:LAST, two steps counted from 1");
    return value;
  };
  const std::string_view text = word;
  const std::int64_t first = number(text.substr(0, colon));
  return {first, colon == std::string::npos ? first : number(text.substr(colon + 1))};
}

void check(const TrainConfig& config, int ranks) {
  Problems problems;
  check_numbers(config, ranks, problems);
  check_sharding(config, ranks, problems);
  check_lora(config, problems);
  problems.gather([&] { models::validate(config.model); });
  problems.raise_if_any();
  check_data(config, problems);
  check_outputs(config, problems);
  problems.raise_if_any();
}

}  // namespace fsdp::train
