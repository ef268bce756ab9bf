// SPDX-License-Identifier: Apache-2.0
/// Finding a listener that may not be there yet, under a name that may not be known yet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fsdp::net {

/// What to reach, and how to speak of it.
struct ReachOptions {
  std::string host = {};
  std::uint16_t port = 0;
  std::chrono::milliseconds limit{};
  std::string who = {};   ///< "rank 1 of 4"
  std::string whom = {};  ///< "rank 0"
  std::string hint = {};  ///< what to do when it fails
};

/// Tries all addresses of the host, IPv4 and IPv6, in turn and again until one accepts a
/// connection. While it waits it says so at info level, after 2 s and then ever more seldom.
/// @returns the literal address that accepted
/// @blocks less than `limit`; a name that the name service does not know for 10 s
/// @throws Error kTimeout with every address tried last and the reason it gave, kIo when the name
/// cannot be resolved
std::string reach(const ReachOptions& options);

/// When to say again that one is still waiting: after 2 s, then at doubled distances up to a
/// minute.
class WaitingNotice {
 public:
  /// Whether it is time, given how long the wait has lasted.
  bool is_due(std::chrono::milliseconds elapsed);

 private:
  std::chrono::milliseconds next_{2000};
};

/// "2.1 s".
std::string seconds_text(std::chrono::milliseconds duration);

}  // namespace fsdp::net
