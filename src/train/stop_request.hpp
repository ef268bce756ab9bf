// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace fsdp::train::detail {

/// While it lives, SIGTERM and SIGINT ask for an end instead of ending the process; a second SIGINT
/// ends it. One at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Whether one of them has come to this process.
  bool is_made() const;
  /// The last that came; SIGTERM when none did.
  int signal() const;

 private:
  struct sigaction before_[2]{};
};

}  // namespace fsdp::train::detail
