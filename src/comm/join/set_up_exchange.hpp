// SPDX-License-Identifier: Apache-2.0
/// How ranks tell each other something before they are connected: through the job's store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

#include "comm/timeout.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// Who takes part, and how long any wait may last.
struct SetUp {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  Milliseconds timeout{};
  /// Where these ranks are a part of a larger job: the number of rank 0 in it and how many there
  /// are in all, for messages; 0: they are the job.
  int first_rank = 0;
  int job_size = 0;
};

/// What every rank says about `topic`, by rank; once a topic. Rank 0, which may serve the store,
/// waits a moment until all have read, so that each may end afterwards.
/// @collective all ranks @blocks
/// @throws Error kTimeout naming the rank that says nothing or the store's host, kPeerFailed when
/// the store is gone
std::vector<std::string> exchange_texts(const SetUp& set_up, const std::string& topic,
                                        const std::string& mine);

}  // namespace fsdp::comm::detail
