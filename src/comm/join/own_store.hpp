// SPDX-License-Identifier: Apache-2.0
/// The store of a job that no agent serves: rank 0's process does. See NOTE [the job's store] in
/// net/store_wire.hpp.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>

#include "comm/join/job_store.hpp"
#include "comm/join/meeting.hpp"
#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace fsdp::comm::detail {

/// Where and as whom a rank meets the others.
struct MeetingPlace {
  const base::RankEnvironment& environment;
  std::string who;       ///< "rank 1 of 4"
  std::string endpoint;  ///< "127.0.0.1:29500"
  std::string secret;    ///< of the job, empty where it has none
  Clock::time_point deadline;

  /// Whether all ranks are on this host: MASTER_ADDR is written as its loopback interface, 127.*,
  /// ::1 or localhost, which no other host can reach. They meet where no other user of the host can
  /// come: see net/door.hpp.
  bool is_on_one_host() const;
};

/// On rank 0. @blocks until `deadline` @throws Error kIo, kInvalidArgument for a second rank 0
c10::intrusive_ptr<JobStore> serve_store(const MeetingPlace& place);

/// On the others: the store, and the address at which it was found.
/// @blocks until `deadline` @throws Error kTimeout, kIo, kInvalidArgument for another secret
Meeting reach_store(const MeetingPlace& place);

}  // namespace fsdp::comm::detail
