// SPDX-License-Identifier: Apache-2.0
/// Loads a checkpoint into a sharded module and its optimizer, whatever number of ranks, units and
/// precision wrote it. Each rank reads the bytes of its own shards and no others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"
#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// What load() insists on, and what it leaves to the program.
struct LoadOptions {
  /// Throw when a name is missing, unexpected or of another shape. Otherwise load what fits and
  /// return the lists.
  bool strict = true;
  /// Compare checksums. Costs no second pass: each rank sums what it reads, and the ranks' sums
  /// join.
  bool verify = true;
  /// Give the optimizer the options it was saved with (rates, betas), besides moments and steps.
  bool optimizer_options = true;
};

/// What was in a checkpoint and what was not; the same on all ranks except for `rng`.
struct LoadReport {
  std::string path = {};
  std::int64_t step = 0;
  std::map<std::string, archive::Values> values = {};  ///< as RunState::values
  at::Tensor rng = {};                       ///< for set_rng_state(); undefined when none was saved
  std::int64_t entries = 0;                  ///< tensors and step counters that were loaded
  std::vector<std::string> missing = {};     ///< asked for, not there; kept as they were
  std::vector<std::string> unexpected = {};  ///< there, not asked for
  std::vector<std::string> mismatched = {};  ///< "name: F32 [2, 3] in the file, [3, 2] here"
};

/// Loads the checkpoint at `path`, or the newest complete one in it; newer incomplete ones are
/// named in the log. Tensors are converted to the dtype that they have here. Without an `optimizer`
/// the optimizer's state is left out.
///
/// Random numbers: at the world size that saved, each rank goes on with its own stream. At another
/// one, each rank gets a new stream, seeded by the saved first stream, the step, its rank and the
/// world size; the same load gives the same streams.
///
/// @collective all ranks @blocks until all have read
/// @memory nothing of size; a weight in another memory order is read whole, one at a time
/// @throws Error, the same on all ranks: kNotFound without a complete checkpoint; kMismatch with
/// all missing, unexpected and mismatched names; kCorrupt naming the file and tensor, and then the
/// module holds a part of the checkpoint and must not be used; kIo
LoadReport load(const std::string& path, Sharded& sharded, OptimizerState* optimizer = nullptr,
                const LoadOptions& options = {});

/// The state of LibTorch's default CPU generator, which dropout draws from: bytes.
at::Tensor rng_state();
/// Goes on from a state. An undefined one changes nothing.
void set_rng_state(const at::Tensor& state);

}  // namespace fsdp::checkpoint
