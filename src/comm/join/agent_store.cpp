// SPDX-License-Identifier: Apache-2.0
#include "comm/join/agent_store.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/variable.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/network.hpp"
#include "net/reach.hpp"

namespace fsdp::comm::detail {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

/// TCPStore's greeting knows no limit: before a listener that says nothing it would wait for ever.
/// A greeting that is late is left to its thread.
Store connect(const std::string& address, std::uint16_t port, Milliseconds timeout,
              const std::string& who) {
  constexpr Milliseconds kTick{100};
  const std::string endpoint = net::endpoint_text(address, port);
  auto promise = std::make_shared<std::promise<Store>>();
  std::future<Store> answer = promise->get_future();
  std::thread([promise, address, port, timeout] {
    try {
      c10d::TCPStoreOptions options;
      options.port = port;
      options.waitWorkers = false;
      options.timeout = timeout;
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto start = Clock::now();
  net::WaitingNotice notice;
  for (auto elapsed = Milliseconds(0); elapsed < timeout;
       elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - start)) {
    if (answer.wait_for(std::min(kTick, timeout)) == std::future_status::ready) {
      return answer.get();
    }
    if (notice.is_due(elapsed)) {
      base::log(base::LogLevel::kInfo, who, ": waiting for torchrun's store at ", endpoint, ", ",
                net::seconds_text(elapsed), " so far: its port is open");
    }
  }
  fail(ErrorCode::kTimeout, who, " is still waiting for torchrun's store at ", endpoint, " after ",
       net::seconds_text(timeout),
       ": its port is open, but no store answers. The agent stands still, or another program has "
       "that port");
}

}  // namespace

bool agent_serves_store() { return base::get_variable("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

Meeting reach_agent_store(const base::RankEnvironment& environment, const std::string& who,
                          Clock::time_point deadline) {
  std::string address = net::reach(
      {.host = environment.master_addr,
       .port = environment.master_port,
       .limit = remaining(deadline),
       .who = who,
       .whom = "torchrun's store",
       .hint = "MASTER_ADDR and MASTER_PORT say where, FSDP_SETUP_TIMEOUT how long to try"});
  const Store store = connect(address, environment.master_port, remaining(deadline), who);
  const std::string attempt = base::get_variable("TORCHELASTIC_RESTART_COUNT");
  return {.store = c10::make_intrusive<c10d::PrefixStore>(
              "/worker/attempt_" + (attempt.empty() ? "0" : attempt), store),
          .master_address = std::move(address)};
}

}  // namespace fsdp::comm::detail
