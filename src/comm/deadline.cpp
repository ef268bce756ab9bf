// SPDX-License-Identifier: Apache-2.0
#include "comm/deadline.hpp"

#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace fsdp::comm::detail {

bool finishes_within(Milliseconds limit, std::function<void()> action) {
  auto promise = std::make_shared<std::promise<void>>();
  std::future<void> result = promise->get_future();
  std::thread([promise = std::move(promise), action = std::move(action)]() mutable {
    std::exception_ptr failure;
    try {
      action();
    } catch (...) {
      failure = std::current_exception();
    }
    // What it holds is the caller's again: a transport, say, whose last owner must not be this
    // thread, as its end tells whether an exception ends the rank.
    action = nullptr;
    failure ? promise->set_exception(failure) : promise->set_value();
  }).detach();
  if (result.wait_for(limit) != std::future_status::ready) {
    return false;
  }
  result.get();
  return true;
}

}  // namespace fsdp::comm::detail
