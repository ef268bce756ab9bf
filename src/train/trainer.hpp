// SPDX-License-Identifier: Apache-2.0
/// Trains a GPT on text, sharded over the ranks of a world: what `fsdp train` runs on each rank.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/comm/world.hpp"
#include "train/config.hpp"

namespace fsdp::train {

/// What a run ended with; the same on every rank.
struct TrainResult {
  std::int64_t steps = 0;
  double loss = 0;             ///< of the last step's global batch, before its update
  double validation_loss = 0;  ///< nats per token
  double seconds = 0;
  std::string model_path = {};  ///< empty when the model was not saved
  /// SIGTERM or SIGINT ended the run before its last step, which is saved; nothing was evaluated or
  /// written.
  bool is_stopped = false;
  int signal = 0;       ///< that ended it
  bool is_dry = false;  ///< TrainConfig::dry_run: nothing was trained
};

/// Trains, evaluates, saves and samples. Rank 0 writes to standard output and to the log; the other
/// ranks write nothing. The result depends on the number of ranks by rounding only: the same
/// samples make the same global batches. With TrainConfig::save, SIGTERM or SIGINT to any rank
/// saves and ends the run on all after the step under way; other signals and a kill lose what came
/// after the last complete checkpoint, from which TrainConfig::resume goes on to the same bits.
/// @collective all ranks, with the same configuration @blocks until the run has ended
/// @throws Error kInvalidArgument when the configuration does not fit the world or the data;
/// whatever the engine or the transport throws; std::runtime_error when the loss is not finite
TrainResult train(const TrainConfig& config, const World& world);

}  // namespace fsdp::train
