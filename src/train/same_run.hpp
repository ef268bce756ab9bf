// SPDX-License-Identifier: Apache-2.0
/// Whether all ranks were started for the same run. fsdp train starts them with one command line;
/// inside a job each host may have its own, and its own copy of the data: ranks that differed in a
/// learning rate or an optimizer would train on, each its part of the weights, to no end.
#pragma once

#include <string>

#include "fsdp/comm/world.hpp"
#include "fsdp/data/corpus.hpp"
#include "train/config.hpp"

namespace fsdp::train::detail {

/// A hash of tokens in 64 evenly spread places of 4096 tokens: what tells a text from another with
/// as many tokens. Of a text that has fewer, all are in it.
std::string data_hash(const data::Corpus& corpus);

/// All that ranks must have in common, a line each: options, the model, and what the data reads
/// like in some places. Paths may differ. Opens the data. Local.
std::string facts_of(const TrainConfig& config, int ranks);

/// Compares the facts of all ranks.
/// @collective all ranks @throws Error kInvalidArgument, on all ranks, with the first that differs
void check_same_run(const std::string& facts, const World& world);

}  // namespace fsdp::train::detail
