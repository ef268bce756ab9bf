// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/data/sampler.hpp"
#include "fsdp/optim/loss_scaler.hpp"
#include "train/config.hpp"
#include "train/optimizer.hpp"

namespace fsdp::train::detail {

/// Where a run stands after some of its steps.
struct Standing {
  std::int64_t step = 0;         ///< steps taken
  std::int64_t next_sample = 0;  ///< of the sampler's stream
  double loss = 0;               ///< of the last step
  /// The lowest validation loss so far.
  double best = std::numeric_limits<double>::infinity();
  LossScalerState scaler = {};  ///< a scale of 0: none
};

/// A run's checkpoints: when to save, what belongs into one, and how to go on.
class Checkpoints {
 public:
  /// Nothing is saved when config.save is empty. `data_hash` tells the data from others.
  Checkpoints(const TrainConfig& config, const Sharded& sharded, Optimizer& optimizer,
              const data::Sampler& sampler, std::string data_hash);

  bool is_on() const { return saver_ != nullptr; }
  const TrainConfig& config() const { return config_; }

  /// The step of the last checkpoint that was begun or loaded; nothing for none.
  std::optional<std::int64_t> saved_step() const {
    return saved_step_ >= 0 ? std::optional(saved_step_) : std::nullopt;
  }

  /// Loads the newest complete checkpoint, also this rank's random numbers. Nothing when there is
  /// none. @collective all ranks @throws Error as checkpoint::load(), and kMismatch for other data
  /// or another seed
  std::optional<Standing> resume();

  /// Saves when the step's turn has come, or always when `now`; then it is on disk on return. A
  /// disk that is full is a warning and no end of training, unless `now`: earlier checkpoints are
  /// there, and the next turn tries again. Weights that are not finite are never saved.
  /// @collective all ranks @throws Error, and std::runtime_error for such weights
  void save(const Standing& standing, bool now);

 private:
  void check_finite(std::int64_t step) const;
  void warn_of_threads(const checkpoint::LoadReport& report) const;
  void save_at_once(const Standing& standing, bool now);
  checkpoint::RunState run_state(const Standing& standing) const;

  TrainConfig config_;
  Sharded sharded_;
  Optimizer& optimizer_;
  const data::Sampler& sampler_;
  std::string data_hash_;
  std::int64_t threads_ = 0;  ///< of an operator, on rank 0: they decide how sums are rounded
  std::map<std::string, std::string> documents_;
  std::unique_ptr<checkpoint::Saver> saver_;
  std::int64_t saved_step_ = -1;
};

}  // namespace fsdp::train::detail
