// SPDX-License-Identifier: Apache-2.0
/// The ranks of a job: who this process (or thread) is and how it reaches its peers. The first
/// thing a program makes.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "fsdp/comm/link.hpp"

namespace fsdp {

/// A rank's view of the job.
///
/// *Invariants*: rank() is in [0, size()).
/// *Thread safety*: copyable; copies share one Link, used by one thread at a time.
/// *Example*:
///
///     fsdp::World world = fsdp::init();
///     std::cout << world.rank() << " of " << world.size() << "\n";
class World {
 public:
  /// A world over a link of one's own: see make_c10d_link().
  World(comm::Link link, int local_rank, int local_size, c10::Device device = c10::kCPU)
      : link_(std::move(link)), local_rank_(local_rank), local_size_(local_size), device_(device) {}

  int rank() const;
  int size() const;
  /// Rank among, and number of, the ranks on this host.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// Where this rank computes; with a number, unless it is the CPU.
  c10::Device device() const { return device_; }
  /// The way to the other ranks: numbers on the host, tensors, both.
  comm::Job& job() const { return *link_.job; }
  comm::Transport& transport() const { return *link_.transport; }
  const comm::Link& link() const { return link_; }
  /// Waits until all ranks are here. @collective all ranks @blocks @throws as comm::Work::wait()
  void barrier() const;
  /// Makes the group usable again after an error that only some ranks saw; sharded models drop the
  /// interrupted step. See comm::Job::recover(). @collective all ranks @blocks
  void recover() const;
  /// Informs all ranks why this one is about to end: their waits end at once, with this text. Call
  /// it where an exception is about to leave the program. Local.
  void publish_failure(const std::string& text) const noexcept;

 private:
  comm::Link link_;
  int local_rank_;
  int local_size_;
  c10::Device device_;
};

/// How ranks reach each other.
struct InitOptions {
  /// "auto": one process needs no transport, several on one host use shm. Several hosts with
  /// equally many ranks each, two or more, numbered host by host (as torchrun and Slurm do) use
  /// shm+gloo: shared memory inside a host, gloo between hosts, each byte between two hosts once.
  /// Other ranks use gloo. Else a name of the table in fsdp/comm/transports.hpp. One host: the same
  /// FSDP_HOST_ID, or by default one boot, host name and PID namespace, and what the launcher
  /// numbers by LOCAL_RANK.
  ///
  /// With a device that is not the CPU, "auto" chooses so for numbers on the host, and for tensors
  /// nccl; where that library is missing, staged, with a warning. One of the host by name carries
  /// the device's tensors through copies, as staged does.
  std::string transport = "auto";
  /// Where ranks compute; empty: what FSDP_DEVICE says (`fsdp run --device` sets it), else "cpu".
  /// "cpu"; "auto", the accelerator of this LibTorch when it sees one, else the
  /// CPU; or one of LibTorch's, "cuda" or "cuda:1". Without a number it is the only one that the
  /// process sees, else the one of its LOCAL_RANK; init() makes it the calling thread's current
  /// device. Two ranks on one device, found by what it is and not by its number, are an error,
  /// except over staged. The same on all ranks.
  std::string device = {};
  /// How long the ranks may take to meet and connect; 0: FSDP_SETUP_TIMEOUT, else FSDP_TIMEOUT,
  /// else 5 minutes.
  std::chrono::milliseconds setup_timeout{0};
  /// How long any later wait for other ranks may last; 0: FSDP_TIMEOUT, else 5 minutes.
  std::chrono::milliseconds timeout{0};
};

/// Joins the job that the environment describes: torchrun's and `fsdp run`'s variables (RANK,
/// WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK), Open MPI's, MPICH's or Slurm's, or none:
/// then one process is the whole world.
/// While it waits, it says for which ranks, on standard error.
/// @collective every process of the job @blocks until all have joined, up to `setup_timeout`
/// @throws Error kInvalidArgument naming the variable and its value before any wait, or two
/// processes that claim one rank, or ranks with different WORLD_SIZE, or a device that is not there
/// or that two ranks have; kUnsupported, on all ranks, for a device or transport that this build or
/// machine is without; kTimeout naming who is
/// missing, or every address of rank 0 that was tried; kIo when rank 0's port is held by somebody
/// else or its name is not known; kPeerFailed when the ranks met but cannot connect
World init(const InitOptions& options = {});

/// Runs `body` once for each of `size` ranks, each on its own thread of this process, and returns
/// when all have ended. An exception of any rank is rethrown here: the first in time, with "rank R:
/// " in front of an Error's text; the other ranks throw kPeerFailed at their next wait. For tests
/// and examples.
/// @blocks until all ranks have ended @throws Error kInvalidArgument for a size below 1
void run_threads(int size, const std::function<void(World)>& body);

}  // namespace fsdp
