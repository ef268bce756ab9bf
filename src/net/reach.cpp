// SPDX-License-Identifier: Apache-2.0
#include "net/reach.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/network.hpp"

namespace fsdp::net {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// The system's resolver knows no limit: without a name service it can take half a minute. A
/// look-up that is late is left to its thread.
Resolution resolve_within(const std::string& host, std::uint16_t port, Milliseconds limit) {
  auto promise = std::make_shared<std::promise<Resolution>>();
  std::future<Resolution> answer = promise->get_future();
  std::thread([promise, host, port] { promise->set_value(resolve(host, port)); }).detach();
  if (answer.wait_for(limit) != std::future_status::ready) {
    return {.failure = "the name '" + host +
                       "' cannot be resolved: the name service did not answer "
                       "within " +
                       seconds_text(limit)};
  }
  return answer.get();
}

/// One round over all addresses.
struct Round {
  std::string accepted = {};
  std::string tries = {};  ///< "127.0.0.1:29500: Connection refused (errno 111); ..."
  bool is_name_known = true;
};

Round try_all(const ReachOptions& options, Clock::time_point deadline) {
  constexpr Milliseconds kEach{2000};
  const auto left = [&] {
    return std::max(Milliseconds(1),
                    std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
  };
  Round round;
  const Resolution resolution = resolve_within(options.host, options.port, left());
  round.is_name_known = !resolution.addresses.empty();
  round.tries = resolution.failure;
  for (const Address& address : resolution.addresses) {
    const Connection connection = connect_to(address, std::min(kEach, left()));
    if (connection.error == 0) {
      round.accepted = address.host();
      return round;
    }
    round.tries += (round.tries.empty() ? "" : "; ") + address.text() + ": " +
                   std::strerror(connection.error) + " (errno " + std::to_string(connection.error) +
                   ")";
  }
  return round;
}

}  // namespace

std::string reach(const ReachOptions& options) {
  constexpr Milliseconds kPause{100};
  constexpr Milliseconds kPatienceForName{10000};
  const std::string endpoint = endpoint_text(options.host, options.port);
  const auto start = Clock::now();
  // Late by one pause would be after the limit.
  const auto deadline = start + options.limit - kPause;
  WaitingNotice notice;
  auto last_known = start;
  while (true) {
    const Round round = try_all(options, deadline);
    if (!round.accepted.empty()) {
      return round.accepted;
    }
    const auto now = Clock::now();
    const auto elapsed = std::chrono::duration_cast<Milliseconds>(now - start);
    last_known = round.is_name_known ? now : last_known;
    if (now + kPause >= deadline || now - last_known >= kPatienceForName) {
      fail(round.is_name_known ? ErrorCode::kTimeout : ErrorCode::kIo, options.who,
           " cannot reach ", options.whom, " at ", endpoint, " after ", seconds_text(elapsed), ": ",
           round.tries, ". ", options.hint);
    }
    if (notice.is_due(elapsed)) {
      base::log(base::LogLevel::kInfo, options.who, ": waiting for ", options.whom, " at ",
                endpoint, ", ", seconds_text(elapsed), " so far: ", round.tries);
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool WaitingNotice::is_due(Milliseconds elapsed) {
  if (elapsed < next_) {
    return false;
  }
  next_ = elapsed + std::min(elapsed, Milliseconds(60000));
  return true;
}

std::string seconds_text(Milliseconds duration) {
  std::string text(32, '\0');
  const int size = std::snprintf(text.data(), text.size(), "%.1f s",
                                 static_cast<double>(duration.count()) / 1000.0);
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace fsdp::net
