// SPDX-License-Identifier: Apache-2.0
/// Watches a rank's collectives on its device, which nobody waits for: the host goes on, so
/// somebody has to see that one never ends, and end it.
///
/// NOTE [a device's failures]
/// The watch ends all communicators of the rank, in every group, when
///   - a collective has not ended within the job's time-out of its start,
///   - NCCL tells of an error by itself,
///   - the job has a first failure, whoever had it.
/// The first two it also publishes, so that the other ranks' watches do the same. What runs on the
/// device then ends, with any content in its results, and streams behind it go on; every later
/// collective throws, as does the next call on the host. Job::recover() ends them, too, and a group
/// connects again at its first collective after it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/fingerprint.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "comm/timeout.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail::nccl {

/// A collective on its way, and the events around it. Used again when nobody holds it any more.
struct Flight {
  explicit Flight(c10::DeviceType type) : ready(type), done(type) {}
  c10::Event ready;  ///< what the caller's stream had been given
  c10::Event done;
  Fingerprint fingerprint;
  Clock::time_point began;
  enum class State {
    kBeingIssued,  ///< somebody is inside of NCCL with it, which may hang
    kIssued,       ///< `done` tells when it is complete
    kGivenUp,      ///< it never got to the device
  };
  std::atomic<State> state = State::kBeingIssued;
};

/// *Thread safety*: internally locked.
class Watch {
 public:
  /// `job` is the whole job's, of the host transport.
  Watch(std::shared_ptr<Job> job, c10::Device device);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(const std::shared_ptr<Communicator>& communicator);

  /// One that is free, for a collective to be started.
  std::shared_ptr<Flight> take();
  /// From now on it must end in time. Before it is issued.
  void start(const std::shared_ptr<Flight>& flight);

  /// Why the communicators were ended; empty for no reason yet. The first.
  std::string failure();
  /// Ends all communicators, because of `text`. The first reason stays.
  void end(const std::string& text);

  /// Job::recover(), for all ranks: what is on the device ends first. @collective @blocks
  void recover();

 private:
  void run();
  void look();
  std::string find_late(Clock::time_point now);

  const std::shared_ptr<Job> job_;
  const c10::Device device_;
  std::mutex job_mutex_;  ///< while the watch asks the job, or the job recovers; before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::string failure_;
  std::vector<std::weak_ptr<Communicator>> communicators_;
  std::deque<std::shared_ptr<Flight>> in_flight_;  ///< oldest first
  std::vector<std::shared_ptr<Flight>> flights_;   ///< all there are
  std::thread thread_;
};

}  // namespace fsdp::comm::detail::nccl
