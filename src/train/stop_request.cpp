// SPDX-License-Identifier: Apache-2.0
#include "train/stop_request.hpp"

#include <atomic>

namespace fsdp::train::detail {
namespace {

// The only thing the handler may touch.
std::atomic<bool> stop_is_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) { stop_is_requested.store(true); }

}  // namespace

StopRequest::StopRequest() {
  stop_is_requested.store(false);
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &before_);
}

StopRequest::~StopRequest() { ::sigaction(SIGTERM, &before_, nullptr); }

bool StopRequest::is_made() const { return stop_is_requested.load(); }

}  // namespace fsdp::train::detail
