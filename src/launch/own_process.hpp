// SPDX-License-Identifier: Apache-2.0
/// What the launcher changes about its own process before it starts others.
#pragma once

#include <sys/prctl.h>
#include <sys/resource.h>

#include <optional>

namespace fsdp::launch::detail {

/// Orphans come to this process while it lives, should the guardian be killed.
class SubReaper {
 public:
  SubReaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  SubReaper(const SubReaper&) = delete;
  SubReaper& operator=(const SubReaper&) = delete;
  ~SubReaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }

 private:
  int before_ = 0;
};

/// A standard stream that is closed would be the next pipe: opens /dev/null in its place.
void open_standard_streams();

/// Makes room for the pipes of all ranks. @returns the limit before, which the ranks get back
std::optional<rlimit> raise_open_files(int ranks);

/// A terminal that somebody else reads from, because this job runs in the background.
bool is_foreign_terminal(int descriptor);

}  // namespace fsdp::launch::detail
