// SPDX-License-Identifier: Apache-2.0
#include "comm/deadline.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/host_language.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

namespace {
/// How soon a wait notices that the user wants out.
constexpr Milliseconds kTick{100};
}  // namespace

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
  const auto deadline = Clock::now() + limit;
  while (result.wait_for(std::min(kTick, remaining(deadline))) != std::future_status::ready) {
    if (Clock::now() >= deadline) {
      return false;
    }
    FSDP_CHECK(!base::host_wants_out(), ErrorCode::kPeerFailed,
               "interrupted by the user, while this rank waited for the others");
  }
  result.get();
  return true;
}

}  // namespace fsdp::comm::detail
