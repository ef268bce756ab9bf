// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace fsdp::train::detail {

/// While it lives, SIGTERM asks for an end instead of ending the process. One at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Whether SIGTERM has come to this process.
  bool is_made() const;

 private:
  struct sigaction before_{};
};

}  // namespace fsdp::train::detail
