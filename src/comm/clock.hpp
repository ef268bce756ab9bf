// SPDX-License-Identifier: Apache-2.0
/// How far the clocks of a job's hosts are apart.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/comm/job.hpp"

namespace fsdp::comm {

/// What to add to this rank's steady clock to get rank 0's, and how wrong that may be.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;  ///< the true offset is at most this far away
};

/// When a rank entered and left each of several exchanges.
struct Exchanges {
  std::vector<std::int64_t> entered_ns, left_ns;
};

/// Nobody leaves an exchange before all have entered it: each bounds the offset from both sides,
/// and the narrowest bounds count. Method: Cristian, "Probabilistic clock synchronization" (1989),
/// with exchanges in place of a question and its answer.
ClockOffset offset_between(const Exchanges& root, const Exchanges& own);

/// Measures it by some 20 small exchanges. Ranks that read one clock, those of one host, are at
/// most microseconds apart by this; where 0 is possible it is 0.
/// @collective all ranks @blocks @throws as Job::exchange()
ClockOffset clock_offset(Job& job);

}  // namespace fsdp::comm
