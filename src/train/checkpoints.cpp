// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "checkpoint/together.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/comm/mean.hpp"
#include "train/model.hpp"

namespace fsdp::train::detail {
namespace {

archive::Values config_values(const TrainConfig& config, std::int64_t threads) {
  const models::ModelSizes model = models::sizes(config.model);
  return {{"model", std::string(models::model_type(config.model))},
          {"layers", model.layers},
          {"width", model.width},
          {"heads", model.heads},
          {"vocab", model.vocab},
          {"context", model.context},
          {"tied", model.tied},
          {"dropout", model.dropout},
          {"dtype", std::string(to_string(config.dtype))},
          {"optimizer", std::string(to_string(config.optimizer))},
          {"sequence", config.sequence},
          {"global_batch", config.global_batch},
          {"clip", config.clip},
          {"threads", threads}};
}

template <class T>
T value(const checkpoint::LoadReport& report, const std::string& section, const std::string& key) {
  const auto values = report.values.find(section);
  const auto found =
      values == report.values.end() ? archive::Values::const_iterator() : values->second.find(key);
  const T* held = values != report.values.end() && found != values->second.end()
                      ? std::get_if<T>(&found->second)
                      : nullptr;
  FSDP_CHECK(held != nullptr, ErrorCode::kMismatch, "'", report.path, "' has no ", section, ".",
             key, ": fsdp train did not write it; load its weights with the library instead");
  return *held;
}

std::uint64_t parse_seed(const std::string& text, const std::string& path) {
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  FSDP_CHECK(error == std::errc() && end == text.data() + text.size(), ErrorCode::kCorrupt, "'",
             path, "': data.seed is '", text, "'");
  return seed;
}

/// A scale of 0 where the checkpoint has none.
LossScalerState scaler_state(const checkpoint::LoadReport& report) {
  if (!report.values.contains("scaler")) {
    return {};
  }
  return {.scale = value<double>(report, "scaler", "scale"),
          .growth_tracker = value<std::int64_t>(report, "scaler", "growth_tracker")};
}

/// Infinity where nothing was judged yet, or by a program that did not keep it.
double best_of(const checkpoint::LoadReport& report) {
  const auto values = report.values.find("progress");
  if (values == report.values.end() || !values->second.contains("best_validation_loss")) {
    return std::numeric_limits<double>::infinity();
  }
  return value<double>(report, "progress", "best_validation_loss");
}

/// Whether rank 0 sees a complete checkpoint. @collective all ranks
bool has_checkpoint(const std::string& directory, const World& world) {
  bool found = false;
  checkpoint::detail::together(world, "resume", [&] {
    found = world.rank() == 0 && archive::latest_checkpoint(directory).found;
  });
  return comm::value_of_first(world.job(), found, "resume");
}

}  // namespace

Checkpoints::Checkpoints(const TrainConfig& config, const Sharded& sharded, Optimizer& optimizer,
                         const data::Sampler& sampler, std::string data_hash)
    : config_(config),
      sharded_(sharded),
      optimizer_(optimizer),
      sampler_(sampler),
      data_hash_(std::move(data_hash)) {
  if (!config.save.empty()) {
    threads_ = comm::value_of_first(sharded_.world().job(), std::int64_t{at::get_num_threads()},
                                    "threads");
    documents_ = model_documents(config);
    saver_ = std::make_unique<checkpoint::Saver>(config.save, sharded, optimizer.state(),
                                                 checkpoint::SaverOptions{.keep = config.keep});
    saver_->claim();
  }
}

std::optional<Standing> Checkpoints::resume() {
  if (!has_checkpoint(config_.save, sharded_.world())) {
    return std::nullopt;
  }
  const auto state = optimizer_.state();
  // The options come from the command line, like everything else of a run.
  const checkpoint::LoadReport report =
      checkpoint::load(config_.save, sharded_, state.get(), {.optimizer_options = false});
  checkpoint::set_rng_state(report.rng);
  saved_step_ = report.step;
  warn_of_threads(report);
  return Standing{.step = report.step,
                  .next_sample = sampler_.resume(
                      {.seed = parse_seed(value<std::string>(report, "data", "seed"), report.path),
                       .windows = value<std::int64_t>(report, "data", "windows"),
                       .next_sample = value<std::int64_t>(report, "data", "next_sample")}),
                  .loss = value<double>(report, "progress", "loss"),
                  .best = best_of(report),
                  .scaler = scaler_state(report)};
}

checkpoint::RunState Checkpoints::run_state(const Standing& standing) const {
  const data::SamplerState data = sampler_.state(standing.next_sample);
  return {
      .values = {{"config", config_values(config_, threads_)},
                 {"data",
                  {{"seed", std::to_string(data.seed)},
                   {"windows", data.windows},
                   {"hash", data_hash_},
                   {"next_sample", data.next_sample}}},
                 {"progress", {{"loss", standing.loss}, {"best_validation_loss", standing.best}}},
                 {"scaler",
                  {{"scale", standing.scaler.scale},
                   {"growth_tracker", standing.scaler.growth_tracker}}},
                 {"schedule",
                  {{"kind", std::string(to_string(config_.schedule))},
                   {"lr", config_.lr},
                   {"min_lr", config_.effective_min_lr()},
                   {"warmup", config_.effective_warmup()},
                   {"steps", config_.steps},
                   {"position", standing.step}}}},
      .rng = checkpoint::rng_state(),
      .documents = documents_};
}

void Checkpoints::warn_of_threads(const checkpoint::LoadReport& report) const {
  const auto config = report.values.find("config");
  if (sharded_.world().rank() != 0 || config == report.values.end() ||
      !config->second.contains("threads")) {
    return;
  }
  const std::string before = archive::to_text(config->second.at("threads"));
  if (before != std::to_string(threads_)) {
    base::log(base::LogLevel::kWarn, "'", report.path, "' was trained with ", before,
              " threads a rank, this run has ", threads_,
              ": its sums are rounded otherwise; OMP_NUM_THREADS=", before,
              " goes on to the same bits");
  }
}

void Checkpoints::save_at_once(const Standing& standing, bool now) {
  if (saved_step_ != standing.step) {
    saver_->save(standing.step, run_state(standing));
    saved_step_ = standing.step;
  }
  if (now) {
    saver_->wait();
  }
}

void Checkpoints::check_finite(std::int64_t step) const {
  bool is_finite = true;
  for (const at::Tensor& shard : sharded_.parameters()) {
    is_finite = is_finite && (shard.numel() == 0 || shard.isfinite().all().item<bool>());
  }
  const double share =
      mean_over_ranks(sharded_.world(), is_finite ? 1.0 : 0.0, 1.0, "finite weights").get();
  if (share < 1) {
    throw std::runtime_error(
        "step " + std::to_string(step) +
        ": weights are no longer finite and were not saved; a lower --lr, a longer --warmup or a "
        "larger --eps may help" +
        (saved_step_ >= 0
             ? ". Step " + std::to_string(saved_step_) + " is saved, --resume goes on from there"
             : ""));
  }
}

void Checkpoints::save(const Standing& standing, bool now) {
  const bool is_turn = config_.save_every > 0 && standing.step % config_.save_every == 0;
  if (!is_on() || (!is_turn && !now)) {
    return;
  }
  check_finite(standing.step);
  // The first attempt may throw what became of the save before, and this one deserves its own.
  for (int attempts_left = 1; attempts_left >= 0; --attempts_left) {
    try {
      save_at_once(standing, now);
      return;
    } catch (const Error& error) {
      const bool is_disk = error.code() == ErrorCode::kIo || error.code() == ErrorCode::kNotFound;
      if (!is_disk || (now && attempts_left == 0)) {
        throw;
      }
      saved_step_ = -1;
      if (sharded_.world().rank() == 0) {
        base::log(base::LogLevel::kWarn,
                  "a checkpoint was not saved, training goes on: ", error.text());
      }
    }
  }
}

}  // namespace fsdp::train::detail
