// SPDX-License-Identifier: Apache-2.0
#include "train/same_run.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "checkpoint/together.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "train/dataset.hpp"

namespace fsdp::train::detail {
namespace {

/// As few digits as tell a number from all others.
std::string digits(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string line_of(std::istream& lines) {
  std::string line;
  std::getline(lines, line);
  return line;
}

}  // namespace

namespace {

/// A hash of the begin of 64 tensors, evenly spread: weights that learnt anything differ in all.
/// Empty for no weights.
std::string weights_hash(const std::string& path) {
  constexpr std::size_t kPlaces = 64;
  constexpr std::int64_t kBytes = 4096;  // whole elements of any type
  if (path.empty()) {
    return "";
  }
  const archive::WeightSource source(path);
  base::Fnv1a hash;
  const std::size_t count = source.tensors().size();
  std::vector<std::byte> bytes;
  for (std::size_t place = 0; place < std::min(kPlaces, count); ++place) {
    const archive::Tensor& tensor =
        source.tensors()[count <= kPlaces ? place : count / kPlaces * place];
    hash.add(tensor.name);
    bytes.resize(static_cast<std::size_t>(std::min(kBytes, tensor.bytes)));
    source.read(tensor, 0, std::ssize(bytes), bytes.data());
    hash.add(bytes);
  }
  return std::to_string(hash.value());
}

/// Of the adapters in a directory.
std::string adapter_hash(const std::string& directory) {
  return directory.empty()
             ? ""
             : weights_hash((std::filesystem::path(directory) / format::kAdapterFile).string());
}

}  // namespace

std::string data_hash(const data::Corpus& corpus) {
  constexpr std::int64_t kPlaces = 64, kTokens = 4096;
  base::Fnv1a hash;
  std::vector<std::int64_t> tokens;
  const std::int64_t last = std::max<std::int64_t>(corpus.tokens() - kTokens, 0);
  const std::int64_t places = last == 0 ? 1 : kPlaces;
  for (std::int64_t place = 0; place < places; ++place) {
    tokens.resize(static_cast<std::size_t>(std::min(kTokens, corpus.tokens())));
    // Divided first: the product may be beyond the largest integer.
    const std::int64_t begin = place + 1 == places ? last : last / places * place;
    corpus.read(begin, tokens);
    hash.add(std::as_bytes(std::span(tokens)));
  }
  return std::to_string(hash.value());
}

std::string facts_of(const TrainConfig& config, int ranks) {
  const Dataset data(config);
  std::ostringstream text;
  text << "--steps is " << config.steps << "\n--seq is " << config.sequence
       << "\n--global-batch is " << config.global_batch << "\nthe batch of a micro-step is "
       << config.effective_batch(ranks) << "\n--lr is " << digits(config.lr) << "\n--min-lr is "
       << digits(config.effective_min_lr()) << "\n--warmup is " << config.effective_warmup()
       << "\n--optimizer is " << to_string(config.optimizer) << "\n--beta1 is "
       << digits(config.beta1) << "\n--beta2 is " << digits(config.beta2) << "\n--eps is "
       << digits(config.eps) << "\n--momentum is " << digits(config.effective_momentum())
       << "\n--weight-decay is " << digits(config.weight_decay) << "\n--clip is "
       << digits(config.clip) << "\n--seed is " << config.seed << "\n--init is "
       << (config.init.empty() ? "left out" : "given") << "\n--adapter is "
       << (config.adapter.empty() ? "left out" : "given") << "\na hash of the weights of --init is "
       << weights_hash(config.init) << "\na hash of the weights of --adapter is "
       << adapter_hash(config.adapter) << "\n--lora-rank is " << config.lora.rank
       << "\n--lora-alpha is " << digits(config.lora.alpha) << "\n--lora-targets is";
  for (const std::string& target : config.lora.targets) {
    text << " " << target;
  }
  text << "\n--eval-every is " << config.eval_every << "\n--eval-batches is " << config.eval_batches
       << "\n--sample is " << config.sample << "\n--prompt is " << config.prompt << "\n--out is "
       << (config.out.empty() ? "empty" : "given") << "\n--save is "
       << (config.save.empty() ? "left out" : "given") << "\n--save-every is " << config.save_every
       << "\n--keep is " << config.keep << "\n--resume is "
       << (config.resume ? "given" : "left out") << "\n--recompute is "
       << (config.recompute ? "given" : "left out") << "\n--strategy is "
       << to_string(config.strategy) << "\n--shard is " << config.shard
       << "\n--param-dtype is number " << static_cast<int>(config.param_dtype)
       << "\n--reduce-dtype is number " << static_cast<int>(config.reduce_dtype)
       << "\n--defer is number " << static_cast<int>(config.micro_step_sync)
       << "\nthe number of tokens in --data is "
       << data.tokens(Part::kTraining) + data.tokens(Part::kValidation)
       << "\nthe number of rows in --data is " << data.rows(Part::kTraining)
       << "\na hash of tokens in --data is " << data.hash() << "\n--schedule is "
       << to_string(config.schedule) << "\n--decay-steps is " << config.effective_decay_steps()
       << "\n--decay-all is " << (config.decay_all ? "given" : "left out") << "\n--keep-best is "
       << (config.keep_best ? "given" : "left out") << "\n--max-hours is "
       << digits(config.max_hours) << "\n--dry-run is " << (config.dry_run ? "given" : "left out")
       << "\n--dropout is " << digits(models::sizes(config.model).dropout) << "\n--dtype is "
       << to_string(config.dtype) << "\n--out-dtype is " << to_string(config.out_dtype)
       << "\nthe model is\n"
       << models::config_json(config.model, to_string(config.dtype)) << "\n";
  return text.str();
}

void check_same_run(const std::string& facts, const World& world) {
  const std::string name = "options of the run";
  const std::string of_first = checkpoint::detail::broadcast_text(world, facts, name);
  checkpoint::detail::together(world, name, [&] {
    std::istringstream first(of_first), own(facts);
    while (facts != of_first && (first || own)) {
      const std::string theirs = line_of(first), ours = line_of(own);
      FSDP_CHECK(theirs == ours, ErrorCode::kInvalidArgument, ours, " here, but on rank 0 ", theirs,
                 ": start all ranks with the same options, model and data");
    }
  });
}

}  // namespace fsdp::train::detail
