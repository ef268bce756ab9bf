// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.hpp"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <vector>

#include "checkpoint/together.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/mean.hpp"
#include "fsdp/data/sampler.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/models/language_model.hpp"
#include "fsdp/optim/clip.hpp"
#include "fsdp/optim/loss_scaler.hpp"
#include "train/batches.hpp"
#include "train/checkpoints.hpp"
#include "train/dataset.hpp"
#include "train/earlier_run.hpp"
#include "train/evaluate.hpp"
#include "train/event_file.hpp"
#include "train/model.hpp"
#include "train/optimizer.hpp"
#include "train/progress.hpp"
#include "train/run_log.hpp"
#include "train/same_run.hpp"
#include "train/schedule.hpp"
#include "train/sharding.hpp"
#include "train/stop_request.hpp"
#include "train/summary.hpp"
#include "train/tracing.hpp"

namespace fsdp::train {
namespace {

using Clock = std::chrono::steady_clock;

/// How much more an evaluation at the end, and before published weights are trained on, looks at
/// than one on the way.
constexpr std::int64_t kFinalEvaluation = 10;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A run under way on one rank.
class Run {
 public:
  Run(const TrainConfig& config, const World& world)
      : config_(config),
        world_(world),
        data_(config),
        sampler_(data_.rows(detail::Part::kTraining), config.seed),
        model_(detail::make_model(config)),
        tracing_(config),
        sharded_(detail::shard(model_, config, world, tracing_.observer())),
        optimizer_(detail::make_optimizer(config, sharded_)),
        scaler_(sharded_, {.enabled = config.param_dtype == TravelType::kFloat16}),
        schedule_{.lr = config.lr,
                  .min_lr = config.effective_min_lr(),
                  .warmup = config.effective_warmup(),
                  .steps = config.steps,
                  .kind = config.schedule,
                  .decay_steps = config.effective_decay_steps()},
        batch_(config.effective_batch(world.size())),
        micro_steps_(config.global_batch / (world.size() * batch_)),
        loader_(data_, world.device(),
                [this](std::int64_t first_sample) { return rows_of_step(first_sample); }),
        checkpoints_(config, sharded_, *optimizer_, sampler_, data_.hash()) {
    // Dropout differs between ranks; nothing else draws numbers from here on.
    torch::manual_seed(config.seed + 1 + static_cast<std::uint64_t>(world.rank()));
  }

  TrainResult train() {
    const auto begin = begin_;
    if (is_first()) {
      std::printf("%s\n", detail::summary(config_, data_, sharded_).c_str());
    }
    if (config_.dry_run) {
      if (is_first()) {
        std::printf("dry run: all is well up to the first step; nothing was trained or written\n");
      }
      return {.is_dry = true};
    }
    if (checkpoints_.is_on()) {
      stop_.emplace();
    }
    if (config_.resume) {
      resume();
    }
    if (!config_.init.empty() && standing_.step == 0) {
      begin_with_published_weights();
    }
    if (is_first()) {
      detail::record_run(config_);
      log_.emplace(config_.log, standing_.step);
      if (!config_.tensorboard.empty()) {
        events_.emplace(config_.tensorboard);
      }
    }
    TrainResult result = steps();
    stop_.reset();
    if (result.is_stopped) {
      tracing_.finish(sharded_, world_);
      result.seconds = seconds_since(begin);
      if (is_first()) {
        std::printf("\nstopped by %s, step %s is saved: --resume goes on from there\n",
                    result.signal == SIGINT ? "SIGINT" : "SIGTERM",
                    detail::format_count(result.steps).c_str());
        std::fflush(stdout);
      }
      return result;
    }
    if (!config_.out.empty()) {
      // The best ones are there already, unless these are.
      result.model_path = config_.keep_best && !is_best_ ? detail::saved_path(config_)
                                                         : detail::save(config_, sharded_);
    }
    std::string text;
    if (config_.sample > 0) {
      text = detail::sample_text(*model_, config_, data_, world_.device());
      sharded_.reshard();
    }
    result.seconds = seconds_since(begin);
    if (is_first()) {
      print_end(result, text);
    }
    return result;
  }

 private:
  bool is_first() const { return world_.rank() == 0; }

  double evaluate(std::int64_t factor) {
    const double loss = detail::evaluate(
        *model_, world_, data_, factor * config_.eval_batches * config_.global_batch, batch_);
    sharded_.reshard();
    return loss;
  }

  void resume() {
    const std::optional<detail::Standing> standing = checkpoints_.resume();
    if (standing) {
      FSDP_CHECK(standing->step <= config_.steps, ErrorCode::kInvalidArgument, "'", config_.save,
                 "' is at step ", standing->step, ", beyond --steps ", config_.steps);
      FSDP_CHECK(config_.trace.empty() || standing->step < config_.trace_first,
                 ErrorCode::kInvalidArgument, "'", config_.save, "' is at step ", standing->step,
                 ", --trace-steps begin at ", config_.trace_first, ": name later ones");
      standing_ = *standing;
      if (is_scaled() && standing_.scaler.scale > 0) {
        scaler_.set_state(standing_.scaler);
      }
    }
    if (is_first()) {
      const std::string at = "resumed  after step " + detail::format_count(standing_.step);
      std::printf("%s\n\n", standing ? at.c_str() : "resumed  from nothing: no checkpoint yet");
    }
  }

  /// Loads them and shows what they are worth on this data before anything is learnt.
  void begin_with_published_weights() {
    try {
      detail::load_initial(config_, sharded_);
    } catch (const Error& error) {
      // Weights that do not fit are bad input, on all ranks alike; a rank that failed is not.
      const bool is_input = error.code() == ErrorCode::kMismatch ||
                            error.code() == ErrorCode::kCorrupt ||
                            error.code() == ErrorCode::kUnsupported;
      throw Error(is_input ? ErrorCode::kInvalidArgument : error.code(), error.text());
    }
    const double loss = evaluate(kFinalEvaluation);  // the windows of the end: comparable
    FSDP_CHECK(std::isfinite(loss), ErrorCode::kInvalidArgument, "'", config_.init,
               "': its weights have a loss of ", loss,
               " before the first step; they are damaged, or not of the model that their "
               "config.json describes");
    if (is_first()) {
      std::printf("before   validation loss %.4f nats per %s\n\n", loss,
                  data_.is_text() ? "byte" : "token");
      std::fflush(stdout);
    }
  }

  TrainResult steps() {
    // Only rank 0 shows anything; elsewhere the line goes nowhere.
    detail::Progress progress(stdout, config_.steps, detail::terminal_width(stdout));
    TrainResult result{.steps = config_.steps, .loss = standing_.loss};
    if (standing_.step == config_.steps) {
      result.validation_loss = evaluate(kFinalEvaluation);
      is_best_ = !config_.keep_best;  // what is the best was decided before
    }
    while (standing_.step < config_.steps) {
      tracing_.begin_step(standing_.step + 1);
      detail::StepReport report = one_step(standing_.step);
      tracing_.end_step(standing_.step + 1, sharded_, world_);
      // With a loss scale a norm that is not finite is a step that was skipped.
      const bool learns =
          std::isfinite(report.loss) && (is_scaled() || std::isfinite(report.grad_norm));
      if (!learns) {
        // Nothing of these weights is worth an evaluation.
      } else if (report.step == config_.steps) {
        report.validation_loss = result.validation_loss = evaluate(kFinalEvaluation);
      } else if (config_.eval_every > 0 && report.step % config_.eval_every == 0) {
        report.validation_loss = evaluate(1);
      }
      if (log_.has_value()) {
        log_->write(report);
        progress.show(report);
      }
      if (events_.has_value()) {
        events_->write(report);
      }
      if (!learns || !std::isfinite(report.validation_loss.value_or(0))) {
        fail_at(report);
      }
      result.loss = report.loss;
      standing_ = {.step = report.step,
                   .next_sample = standing_.next_sample + config_.global_batch,
                   .loss = report.loss,
                   .best = standing_.best,
                   .scaler = scaler_.state()};
      const bool is_last = report.step == config_.steps;
      if (report.validation_loss) {
        // At the end on the same rows as before, so that the two can be compared.
        keep_best(report.step,
                  is_last && config_.keep_best ? evaluate(1) : *report.validation_loss);
      }
      if (is_over_ && !must_stop_ && !is_last) {
        result.steps = report.step;
        if (!report.validation_loss) {
          keep_best(config_.steps, evaluate(1));
        }
        result.validation_loss = evaluate(kFinalEvaluation);
        if (checkpoints_.is_on()) {
          checkpoints_.save(standing_, true);
        }
        if (is_first()) {
          std::printf("\n--max-hours %g have passed\n", config_.max_hours);
        }
        return result;
      }
      checkpoints_.save(standing_, is_last || must_stop_);
      if (must_stop_ && !is_last) {
        result.steps = report.step;
        result.is_stopped = true;
        result.signal = stop_->signal();
        return result;
      }
    }
    return result;
  }

  /// The best weights are saved when they are found: later ones are no better.
  void keep_best(std::int64_t step, double loss) {
    is_best_ = loss < standing_.best;
    if (!is_best_) {
      return;
    }
    standing_.best = loss;
    if (config_.keep_best && step < config_.steps) {
      detail::save(config_, sharded_);
    }
  }

  /// Ends a run whose numbers are lost, before anything of it is saved over what was sound.
  [[noreturn]] void fail_at(const detail::StepReport& report) const {
    std::string text = "step " + std::to_string(report.step) + ": the loss is " +
                       std::to_string(report.loss) + " and the gradient norm " +
                       std::to_string(report.grad_norm);
    if (report.validation_loss) {
      text += ", after it the validation loss " + std::to_string(*report.validation_loss);
    }
    text += "; a lower --lr or a longer --warmup may help";
    if (const auto step = checkpoints_.saved_step()) {
      text += ". Step " + std::to_string(*step) + " is saved, --resume goes on from there";
    }
    throw std::runtime_error(text);
  }

  /// The rows of each micro-step of this rank in the step that begins with a sample.
  std::vector<std::vector<std::int64_t>> rows_of_step(std::int64_t first_sample) const {
    std::vector<std::vector<std::int64_t>> rows;
    for (std::int64_t micro = 0; micro < micro_steps_; ++micro) {
      rows.push_back(
          sampler_.micro_batch(first_sample, micro, {world_.rank(), world_.size()}, batch_));
    }
    return rows;
  }

  /// By what a rank's summed losses are multiplied so that their mean over the ranks is the mean
  /// over all targets of the step.
  double share_of_target(const std::vector<detail::Batch>& batches) {
    double own = 0;
    for (const detail::Batch& batch : batches) {
      own += static_cast<double>(batch.counted);
    }
    if (!data_.is_packed()) {
      return 1 / own;  // all ranks have as many
    }
    return 1 / mean_over_ranks(world_, own, 1.0, "targets").get();
  }

  detail::StepReport one_step(std::int64_t step) {
    const auto begin = Clock::now();
    const auto step_scope = trace_scope("step");
    const double waited = loader_.waited();
    const std::vector<detail::Batch> batches = next_batches(step);
    const double share = share_of_target(batches);
    std::vector<at::Tensor> losses;
    for (std::size_t micro = 0; micro < batches.size(); ++micro) {
      const detail::Batch batch = batches[micro].on(world_.device());
      const at::Tensor loss = forward(batch);
      sharded_.set_gradient_sync(micro + 1 < batches.size() ? config_.micro_step_sync
                                                            : GradientSync::kEveryBackward);
      {
        const auto scope = trace_scope("backward");
        scaler_.scale(batch.is_packed ? loss * share : loss / static_cast<double>(micro_steps_))
            .backward();
      }
      losses.push_back(loss.detach());
    }
    // Read when all micro-steps are under way: the first reading waits for the device.
    double loss_sum = 0, counted = 0;
    for (std::size_t micro = 0; micro < batches.size(); ++micro) {
      const auto targets = static_cast<double>(batches[micro].counted);
      loss_sum += losses[micro].item<double>() * (batches[micro].is_packed ? 1.0 : targets);
      counted += targets;
    }
    PendingMean mean_loss =
        mean_over_ranks(world_, counted > 0 ? loss_sum / counted : 0, counted, "loss");
    std::optional<PendingMean> stopped, over;
    if (stop_) {  // ranks must stop after the same step, so a signal to one concerns all
      stopped.emplace(mean_over_ranks(world_, stop_->is_made() ? 1.0 : 0.0, 1.0, "stop"));
    }
    if (config_.max_hours > 0) {
      const bool has_passed = seconds_since(begin_) >= 3600 * config_.max_hours;
      over.emplace(mean_over_ranks(world_, has_passed ? 1.0 : 0.0, 1.0, "hours"));
    }

    detail::StepReport report{.step = step + 1, .lr = schedule_.at(step)};
    report.grad_norm = clip();
    report.loss = mean_loss.get();
    must_stop_ = stopped && stopped->get() > 0;
    is_over_ = over && over->get() > 0;
    {
      const auto scope = trace_scope("optimizer");
      optimizer_->step(report.lr);
      if (is_scaled()) {
        scaler_.update();
      }
    }
    sharded_.zero_grad();
    report.tokens_per_s =
        static_cast<double>(config_.global_batch * config_.sequence) / seconds_since(begin);
    report.seconds = seconds_since(begin_);
    report.wait_seconds = loader_.waited() - waited;
    report.peak_bytes = detail::peak_resident_bytes();
    return report;
  }

  /// Those of a step, while those of the next are being read.
  std::vector<detail::Batch> next_batches(std::int64_t step) {
    const auto scope = trace_scope("data");
    const std::int64_t next = standing_.next_sample + config_.global_batch;
    return loader_.next(standing_.next_sample, step + 1 < config_.steps ? next : -1);
  }

  /// The sum over the targets of packed rows, the mean over those of others.
  at::Tensor forward(const detail::Batch& batch) {
    const auto scope = trace_scope("forward");
    return batch.is_packed ? model_->forward(batch.rows)
                           : model_->forward(batch.rows.tokens, batch.rows.targets);
  }

  bool is_scaled() const { return config_.param_dtype == TravelType::kFloat16; }

  /// The gradients' norm before clipping.
  double clip() {
    const auto scope = trace_scope("clip");
    if (is_scaled()) {
      const auto limit = config_.clip > 0 ? std::optional(config_.clip) : std::nullopt;
      return scaler_.unscale_(limit).norm;
    }
    return config_.clip > 0 ? clip_grad_norm_(sharded_, config_.clip) : grad_norm(sharded_);
  }

  void print_end(const TrainResult& result, const std::string& text) const {
    std::printf("\nvalidation loss %.4f nats per %s after %s steps (training loss %.4f)\n",
                result.validation_loss, data_.is_text() ? "byte" : "token",
                detail::format_count(result.steps).c_str(), result.loss);
    if (!text.empty()) {
      std::printf("\n--- sample ---\n%s\n--------------\n\n", text.c_str());
    }
    if (!result.model_path.empty()) {
      std::printf("model saved to %s\n", result.model_path.c_str());
    }
    std::printf("total time %s\n", detail::format_duration(result.seconds).c_str());
    std::fflush(stdout);
  }

  TrainConfig config_;
  World world_;
  Clock::time_point begin_ = Clock::now();
  detail::Dataset data_;
  data::Sampler sampler_;
  std::shared_ptr<models::LanguageModel> model_;
  detail::Tracing tracing_;  ///< before what it observes
  Sharded sharded_;
  std::unique_ptr<detail::Optimizer> optimizer_;
  LossScaler scaler_;  ///< leaves everything as it is unless weights are float16
  Schedule schedule_;
  std::int64_t batch_, micro_steps_;
  detail::Loader loader_;
  detail::Checkpoints checkpoints_;
  std::optional<detail::RunLog> log_;        ///< of rank 0, once it is known where the run begins
  std::optional<detail::EventFile> events_;  ///< the same
  bool is_best_ = false;                     ///< the last evaluation was the best so far
  std::optional<detail::StopRequest> stop_;
  detail::Standing standing_;
  bool must_stop_ = false, is_over_ = false;
};

}  // namespace

TrainResult train(const TrainConfig& config, const World& world) {
  // Together, so that no rank waits for one that has refused; files of runs are rank 0's.
  std::string facts;
  checkpoint::detail::together(world, "check", [&] {
    check(config, world.size());
    if (world.rank() == 0) {
      check_earlier_run(config);
    }
    facts = detail::facts_of(config, world.size());
  });
  detail::check_same_run(facts, world);
  return Run(config, world).train();
}

}  // namespace fsdp::train
