// SPDX-License-Identifier: Apache-2.0
/// What a rank holds of a group: both faces of one line.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace fsdp::comm {

class Job;
class Transport;

/// *Invariants*: both are of the same ranks. Copies share them. Neither is null, except in a Link
/// that is still to be filled.
struct Link {
  std::shared_ptr<Job> job;
  std::shared_ptr<Transport> transport;

  /// As Job::rank() and Job::size().
  int rank() const;
  int size() const;

  /// Both faces of a part of the ranks. @collective @blocks @throws as Job::split()
  Link split(const std::vector<int>& ranks, const std::string& label) const;
};

}  // namespace fsdp::comm
