// SPDX-License-Identifier: Apache-2.0
/// What saved weights are worth on data: what `fsdp eval` runs on each rank.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/comm/world.hpp"
#include "train/config.hpp"

namespace fsdp::train {

/// What came of an evaluation, over all targets that count.
struct Evaluation {
  double nats_per_token = 0;
  double nats_per_byte = 0;  ///< of the text that the targets stand for; special tokens have none
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
};

/// Evaluates the weights at config.init, with config.adapter, on all rows of config.validation, of
/// config.sequence tokens each, config.batch at a time on each rank. The result depends on the
/// number of ranks by rounding only. @collective all ranks
/// @throws Error as config_of(), checkpoint::load_weights() and the data's
Evaluation evaluate(const TrainConfig& config, const World& world);

}  // namespace fsdp::train
