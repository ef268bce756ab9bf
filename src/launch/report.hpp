// SPDX-License-Identifier: Apache-2.0
/// Which rank failed first, and what a person reads about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fsdp::launch::detail {

/// How one rank ended.
struct RankEnd {
  int rank = 0;
  int exit_code = 0;  ///< 128 + signal when a signal ended it
  int signal = 0;     ///< that ended it; a program may exit with such a code by itself
  bool was_asked_to_stop = false;
  bool is_left_over = false;                 ///< it could not be killed
  std::vector<std::string> last_lines = {};  ///< of its standard error
};

/// Whether a rank says itself that another one failed before it: its last lines hold "[peer
/// failed]" or "[time-out]", with which the library's errors begin, or Gloo's words for a
/// connection that a peer has closed.
bool names_another_cause(const RankEnd& end);

/// The rank to blame, as an index: the first in time that failed before it was told to stop and
/// does not name another cause. Else one that a victim names ("first failure: rank 3"), or that
/// ended by itself, with an error in its last lines, although it had been told to stop: the cause
/// may take longer to end than its victims, still writing those lines, say. Else the first that was
/// not told to stop; else the first to fail. `ends` are in the order of time.
std::optional<std::size_t> find_first_failure(const std::vector<RankEnd>& ends);

/// The report, at most 20 lines where the number of ranks allows it, so that the end of any log
/// shows all of it: the first failure with its last lines, then the others. Empty when nothing
/// failed.
std::string describe_ends(const std::vector<RankEnd>& ends, int stopped_by);

}  // namespace fsdp::launch::detail
