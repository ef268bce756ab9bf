// SPDX-License-Identifier: Apache-2.0
#include "comm/deadline.hpp"

#include <future>
#include <thread>
#include <utility>

namespace fsdp::comm::detail {

bool finishes_within(Milliseconds limit, std::function<void()> action) {
  std::packaged_task<void()> task(std::move(action));
  std::future<void> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) {
    return false;
  }
  result.get();
  return true;
}

}  // namespace fsdp::comm::detail
