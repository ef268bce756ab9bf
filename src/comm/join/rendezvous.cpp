// SPDX-License-Identifier: Apache-2.0
#include "comm/join/rendezvous.hpp"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.hpp"
#include "comm/failure/broken_pipe.hpp"
#include "comm/failure/quiet_store.hpp"
#include "comm/join/claims.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/network.hpp"
#include "net/reach.hpp"

namespace fsdp::comm::detail {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

// After the start, the store only carries failures; a host that is gone must not hold them up.
constexpr Milliseconds kStoreTimeout{10000};
constexpr const char* kMasterAddressKey = "fsdp/master_address";
constexpr const char* kLoopbackAddressKey = "fsdp/master_loopback_address";

std::string get_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string describe(const base::RankEnvironment& environment) {
  return "rank " + std::to_string(environment.rank) + " of " + std::to_string(environment.size);
}

/// The listening socket that the launcher handed on, none without a launcher.
base::Descriptor inherited_socket() {
  const std::string text = get_variable("FSDP_STORE_FD");
  if (text.empty()) {
    return {};
  }
  int descriptor = -1;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), descriptor);
  FSDP_CHECK(status == std::errc() && stop == text.data() + text.size() &&
                 ::fcntl(descriptor, F_GETFD) >= 0,
             ErrorCode::kInvalidArgument, "FSDP_STORE_FD is '", text,
             "', must be an open descriptor; only `fsdp run` sets it");
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return base::Descriptor(descriptor);
}

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
      base::log(base::LogLevel::kInfo, who, ": waiting for rank 0 at ", endpoint, ", ",
                net::seconds_text(elapsed), " so far: its port is open");
    }
  }
  fail(ErrorCode::kTimeout, who, " is still waiting for rank 0 at ", endpoint, " after ",
       net::seconds_text(timeout),
       ": its port is open, but no store of a job answers. Rank 0 has not called init() yet or "
       "stands "
       "still, or another program has that port");
}

/// An address of this host at which a listener on `port` answers.
std::string own_address(std::uint16_t port) {
  for (const char* literal : {"127.0.0.1", "::1"}) {
    const net::Resolution found = net::resolve(literal, port);
    if (!found.addresses.empty() &&
        net::connect_to(found.addresses.front(), Milliseconds(1000)).error == 0) {
      return literal;
    }
  }
  return "127.0.0.1";
}

/// Rank 0 where the port is taken: by another rank 0 of this job, which then learns of it, or by a
/// stranger.
[[noreturn]] void report_taken_port(const base::RankEnvironment& environment,
                                    const std::string& endpoint, Milliseconds timeout,
                                    const Error& cause) {
  constexpr Milliseconds kPatience{5000};
  Store store;
  try {
    store = connect(own_address(environment.master_port), environment.master_port,
                    std::min(timeout, kPatience), "a second rank 0");
  } catch (const std::exception&) {
    // No store of any job.
  }
  if (store) {
    refuse_second_server(*store, endpoint);
  }
  fail(ErrorCode::kIo, "rank 0 of ", environment.size, " cannot serve ", endpoint,
       " (MASTER_ADDR, MASTER_PORT): ", cause.text(), ". Choose another MASTER_PORT");
}

/// MASTER_ADDR may be a name that only other hosts know (a service), so this is no error.
void warn_of_foreign_master(const base::RankEnvironment& environment) {
  const net::Resolution found = net::resolve(environment.master_addr, environment.master_port);
  const std::vector<net::Interface> interfaces = net::list_interfaces();
  for (const net::Address& address : found.addresses) {
    const auto source = net::source_address_towards(address.host());
    if (address.is_loopback() || (source && source->host() == address.host())) {
      return;
    }
  }
  base::log(base::LogLevel::kWarn, "rank 0: MASTER_ADDR is '", environment.master_addr,
            "', which is no address of this host (", net::to_text(interfaces),
            "); the other ranks look for rank 0 there");
}

Store serve(const base::RankEnvironment& environment, const std::string& endpoint,
            Milliseconds timeout) {
  base::Descriptor listener = inherited_socket();
  if (listener.get() < 0) {
    try {
      listener = net::listen_on("", environment.master_port);
    } catch (const Error& error) {
      report_taken_port(environment, endpoint, timeout, error);
    }
    warn_of_foreign_master(environment);
  }
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = true;
  options.numWorkers = static_cast<std::size_t>(environment.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string address = own_address(environment.master_port);
  options.masterListenFd = listener.release();
  const NoBrokenPipe guard;
  return c10::make_intrusive<c10d::TCPStore>(address, options);
}

/// The store that rank 0 or torchrun's agent serves, and the address at which it was found.
Meeting reach_store(const base::RankEnvironment& environment, bool agent_serves,
                    Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string who = describe(environment);
  std::string address = net::reach(
      {.host = environment.master_addr,
       .port = environment.master_port,
       .limit = timeout,
       .who = who,
       .whom = agent_serves ? "torchrun's store" : "rank 0",
       .hint = "MASTER_ADDR and MASTER_PORT say where, FSDP_SETUP_TIMEOUT how long to try"});
  Store store = connect(address, environment.master_port, remaining(deadline), who);
  if (agent_serves) {
    const std::string attempt = get_variable("TORCHELASTIC_RESTART_COUNT");
    store = c10::make_intrusive<c10d::PrefixStore>(
        "/worker/attempt_" + (attempt.empty() ? "0" : attempt), store);
  }
  return {.store = std::move(store), .master_address = std::move(address)};
}

bool is_loopback(const std::string& literal) {
  const net::Resolution found = net::resolve(literal, 0);
  return !found.addresses.empty() && found.addresses.front().is_loopback();
}

/// All ranks must take the same address for rank 0's, of one family: the one that a rank on another
/// host used, else the loopback address that one on this host used.
void publish_master_address(c10d::Store& store, const std::string& literal) {
  const std::vector<std::uint8_t> absent;
  store.compareSet(is_loopback(literal) ? kLoopbackAddressKey : kMasterAddressKey, absent,
                   {literal.begin(), literal.end()});
}

std::string agreed_master_address(c10d::Store& store) {
  const auto text =
      store.get(store.check({kMasterAddressKey}) ? kMasterAddressKey : kLoopbackAddressKey);
  return {text.begin(), text.end()};
}

}  // namespace

Meeting join_store(const base::RankEnvironment& environment, const std::string& transport,
                   Milliseconds timeout) {
  const std::string endpoint = net::endpoint_text(environment.master_addr, environment.master_port);
  const bool agent_serves = get_variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const auto deadline = Clock::now() + timeout;
  const QuietStore quiet;
  try {
    Meeting meeting;
    if (environment.rank == 0 && !agent_serves) {
      meeting.store = serve(environment, endpoint, timeout);
    } else {
      meeting = reach_store(environment, agent_serves, timeout);
      publish_master_address(*meeting.store, meeting.master_address);
    }
    sign_in(*meeting.store, environment, transport, endpoint, remaining(deadline));
    meeting.master_address = agreed_master_address(*meeting.store);
    meeting.store->setTimeout(std::min(timeout, kStoreTimeout));
    return meeting;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kPeerFailed, "rank ", environment.rank, " of ", environment.size,
         " could not meet the others at ", endpoint, ": ", base::first_line(error.what()),
         ". Rank 0 has ended, or somebody else listens there");
  }
}

}  // namespace fsdp::comm::detail
