// SPDX-License-Identifier: Apache-2.0
/// Which rank this process is, read from the variables that launchers set. A pure function of a
/// look-up, so that every mix-up of variables is a test.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace fsdp::base {

/// What a launcher said.
struct RankEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;
  /// "torchrun" (also `fsdp run`), "open-mpi", "mpich", "slurm" or "none": alone.
  std::string source = "none";

  bool operator==(const RankEnvironment&) const = default;
};

/// The value of a variable, nothing when it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads, in this order and the first that is there: RANK and WORLD_SIZE; OMPI_COMM_WORLD_RANK and
/// _SIZE; PMI_RANK and PMI_SIZE; SLURM_PROCID and SLURM_NTASKS inside a step (SLURM_STEP_ID is
/// set). None of them: one process is the whole world.
///
/// Open MPI, MPICH and Slurm name no meeting point. On one host it is 127.0.0.1 and a port derived
/// from the job's identity; on several, MASTER_ADDR and MASTER_PORT must be set.
///
/// @throws Error kInvalidArgument naming the variable and its value when one is missing, no number,
/// negative, blank or out of range, or when WORLD_SIZE is below the number of processes that an MPI
/// or Slurm launcher around has started (unless torchrun or `fsdp run` set it)
RankEnvironment read_rank_environment(const Lookup& lookup);

/// The same from the environment of this process.
RankEnvironment read_rank_environment();

}  // namespace fsdp::base
