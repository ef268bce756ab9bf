// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.hpp"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};
// After the start, the store only carries failures; a host that is gone must not hold them up.
constexpr Milliseconds kStoreTimeout{10000};

std::string get_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<int> inherited_socket() {
  const std::string text = get_variable("FSDP_STORE_FD");
  if (text.empty()) {
    return std::nullopt;
  }
  int descriptor = -1;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), descriptor);
  FSDP_CHECK(status == std::errc() && stop == text.data() + text.size() &&
                 ::fcntl(descriptor, F_GETFD) >= 0,
             ErrorCode::kInvalidArgument, "FSDP_STORE_FD is '", text,
             "', must be an open descriptor; only `fsdp run` sets it");
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return descriptor;
}

std::string claim_key(int rank) { return "fsdp/claimed/" + std::to_string(rank); }

/// Every rank claims its number; waits until all are claimed, each once.
void claim_ranks(c10d::Store& store, const base::RankEnvironment& environment,
                 const std::string& endpoint, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  store.add(claim_key(environment.rank), 1);
  int waiting_for = 0;
  while (waiting_for < environment.size) {
    const auto claims = store.add(claim_key(environment.rank), 0);
    FSDP_CHECK(claims == 1, ErrorCode::kInvalidArgument, "RANK is '", environment.rank, "' in ",
               claims, " processes that meet at ", endpoint,
               ": every process needs its own rank, or an old job is still running");
    if (store.check({claim_key(waiting_for)})) {
      ++waiting_for;
      continue;
    }
    if (Clock::now() >= deadline) {
      std::string missing = std::to_string(waiting_for);
      for (int rank = waiting_for + 1; rank < environment.size; ++rank) {
        if (!store.check({claim_key(rank)})) {
          missing += ", " + std::to_string(rank);
        }
      }
      fail(ErrorCode::kTimeout, "rank ", environment.rank, " of ", environment.size,
           " is waiting for rank ", missing, " at ", endpoint, " after ", to_text(timeout),
           ": was it started with the same MASTER_ADDR and MASTER_PORT? FSDP_TIMEOUT sets the "
           "limit");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_store(const base::RankEnvironment& environment,
                                           Milliseconds timeout) {
  const std::string endpoint =
      environment.master_addr + ":" + std::to_string(environment.master_port);
  const bool agent_serves = get_variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0 && !agent_serves;
  options.numWorkers = static_cast<std::size_t>(environment.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd = inherited_socket();
  }
  const auto start = Clock::now();
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool timed_out = Clock::now() - start >= timeout;
    fail(timed_out ? ErrorCode::kTimeout : ErrorCode::kIo, "rank ", environment.rank, " of ",
         environment.size, options.isServer ? " cannot serve " : " cannot reach rank 0 at ",
         endpoint, " (MASTER_ADDR, MASTER_PORT): ", text.substr(0, text.find('\n')));
  }
  if (agent_serves) {
    const std::string attempt = get_variable("TORCHELASTIC_RESTART_COUNT");
    store = c10::make_intrusive<c10d::PrefixStore>(
        "/worker/attempt_" + (attempt.empty() ? "0" : attempt), store);
  }
  claim_ranks(*store, environment, endpoint, timeout);
  store->setTimeout(std::min(timeout, kStoreTimeout));
  return store;
}

}  // namespace fsdp::comm::detail
