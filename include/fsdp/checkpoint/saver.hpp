// SPDX-License-Identifier: Apache-2.0
/// Saves a sharded module with everything a run needs to go on, while training goes on. Each rank
/// copies its shards and moments, a thread writes what is copied where it belongs in plain
/// safetensors files, and the checkpoint appears in one step when all ranks are done. See
/// docs/reference/checkpoint-format.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fsdp/archive/index.hpp"
#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::checkpoint {

/// What a run knows besides weights and optimizer.
struct RunState {
  /// Sections of named values, the same on all ranks, which load() gives back as they are:
  /// "schedule", "scaler", "data", "config" and such. "optimizer" is taken.
  std::map<std::string, archive::Values> values = {};
  /// This rank's stream of random numbers, as rng_state() returns it; undefined: none is saved.
  at::Tensor rng = {};
  /// Further files, by name: "config.json" makes the directory one that transformers opens.
  std::map<std::string, std::string> documents = {};
};

/// What a Saver keeps, and in which files.
struct SaverOptions {
  /// Complete checkpoints that stay; 0 keeps all. The newest one always stays.
  int keep = 0;
  /// Weights beyond this go into several files, as Hugging Face readers expect.
  std::int64_t max_file_bytes = 5'000'000'000;
};

/// Saves a module's checkpoints into one directory, as "step-00000100" and so on.
///
/// *Invariants*: at most one save is under way; the directory belongs to this run (a second one
/// throws); what is complete is never written to. *Thread safety*: one thread at a time per rank,
/// the one that trains. *Example*:
///
///     fsdp::checkpoint::Saver saver("runs/mine", sharded, fsdp::checkpoint::state_of(optimizer));
///     saver.save(step, {.rng = fsdp::checkpoint::rng_state()});   // returns after a copy
///     saver.wait();                                               // at the end
class Saver {
 public:
  /// @memory this rank's shards and moments once more, in host memory, from now on
  Saver(std::string directory, Sharded sharded, std::unique_ptr<OptimizerState> optimizer = nullptr,
        SaverOptions options = {});
  /// Ends the save under way; without wait() before, its failure is a line in the log.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Copies what is to be saved and returns; changes made afterwards are not in the file. Waits for
  /// the save before, and throws what went wrong there: then nothing was begun, and the next call
  /// may try again. A weight in another memory order (transposed, channels last) is put together on
  /// rank 0; all others are copied where they are.
  /// @collective all ranks, with the same step and values @blocks until all ranks have copied
  /// @throws Error, the same on all ranks, with the first failing rank, path and reason:
  /// kInvalidArgument while deferred gradients wait, which the files do not have; kIo when
  /// there is no room or no right to write; kNotFound when a rank does not see the directory that
  /// rank 0 writes to; kMismatch when ranks save different things; kUnsupported for a dtype that
  /// safetensors does not know
  void save(std::int64_t step, const RunState& state = {});

  /// Returns when the last save is complete on disk. @collective all ranks @throws as save()
  void wait();

  /// Makes the directory this run's now, before the first save, and creates it. At the begin of a
  /// run it tells in time that another one saves there. Call it once.
  /// @collective all ranks @blocks for up to `patience_s` seconds, until another run has ended
  /// @throws Error kIo, on all ranks, when another run saves there or it cannot be made
  void claim(double patience_s = 3);

  const std::string& directory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::checkpoint
