// SPDX-License-Identifier: Apache-2.0
#include "comm/join/claims.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/reach.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};
/// So that the others read why before rank 0's store is gone.
constexpr Milliseconds kLinger{500};
constexpr const char* kSizeKey = "fsdp/size";
constexpr const char* kTransportKey = "fsdp/transport";
constexpr const char* kRefusalKey = "fsdp/refusal";

std::string claim_key(int rank) { return "fsdp/claimed/" + std::to_string(rank); }

/// What the key holds after an attempt to be the first to write it.
std::string write_once(c10d::Store& store, const char* key, const std::string& text) {
  const std::vector<std::uint8_t> absent;
  const auto held = store.compareSet(key, absent, {text.begin(), text.end()});
  return {held.begin(), held.end()};
}

/// Ends the roll call on all ranks: the first reason is everyone's. A time-out is told from a
/// mix-up by the first letter.
[[noreturn]] void refuse(c10d::Store& store, ErrorCode code, const std::string& text) {
  constexpr char kTimeoutMark = 't';
  constexpr char kMixUpMark = 'm';
  const std::string marked = (code == ErrorCode::kTimeout ? kTimeoutMark : kMixUpMark) + text;
  const std::string first = write_once(store, kRefusalKey, marked);
  std::this_thread::sleep_for(kLinger);
  throw Error(first.front() == kTimeoutMark ? ErrorCode::kTimeout : ErrorCode::kInvalidArgument,
              first.substr(1));
}

std::string claimed_twice(int rank, std::int64_t claims, const std::string& endpoint) {
  return base::detail::concatenate(
      "RANK is '", rank, "' in ", claims, " processes that meet at ", endpoint,
      ": every process needs its own rank, or an old job is still running");
}

/// "rank 1", or "ranks 1, 3".
std::string missing_ranks(c10d::Store& store, int first, int size) {
  std::string missing = std::to_string(first);
  for (int rank = first + 1; rank < size; ++rank) {
    if (!store.check({claim_key(rank)})) {
      base::append_to_list(missing, rank);
    }
  }
  return (missing.find(',') == std::string::npos ? "rank " : "ranks ") + missing;
}

/// Writes what all ranks must say alike; refuses when another process has said otherwise.
void claim_alike(c10d::Store& store, const char* key, const std::string& name,
                 const std::string& value, int rank, const std::string& endpoint) {
  if (const std::string other = write_once(store, key, value); other != value) {
    refuse(store, ErrorCode::kInvalidArgument,
           name + " is '" + value + "' in rank " + std::to_string(rank) + " and '" + other +
               "' in another process that meets at " + endpoint + ": all ranks need the same");
  }
}

}  // namespace

void sign_in(c10d::Store& store, const base::RankEnvironment& environment,
             const std::string& transport, const std::string& endpoint, Milliseconds timeout) {
  const std::string who =
      "rank " + std::to_string(environment.rank) + " of " + std::to_string(environment.size);
  claim_alike(store, kSizeKey, "WORLD_SIZE", std::to_string(environment.size), environment.rank,
              endpoint);
  // Each transport connects in its own way: ranks that try different ones wait for one another.
  claim_alike(store, kTransportKey, "transport", transport, environment.rank, endpoint);
  store.add(claim_key(environment.rank), 1);
  const auto start = Clock::now();
  net::WaitingNotice notice;
  for (int waiting_for = 0; waiting_for < environment.size;) {
    if (store.check({kRefusalKey})) {
      refuse(store, ErrorCode::kInvalidArgument, "");  // the text is there
    }
    const auto claims = store.add(claim_key(environment.rank), 0);
    if (claims != 1) {
      refuse(store, ErrorCode::kInvalidArgument, claimed_twice(environment.rank, claims, endpoint));
    }
    if (store.check({claim_key(waiting_for)})) {
      ++waiting_for;
      continue;
    }
    const auto elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
    if (elapsed >= timeout) {
      refuse(store, ErrorCode::kTimeout,
             who + " is still waiting for " + missing_ranks(store, waiting_for, environment.size) +
                 " at " + endpoint + " after " + net::seconds_text(elapsed) +
                 ": started with the same MASTER_ADDR and MASTER_PORT? FSDP_SETUP_TIMEOUT "
                 "sets the limit");
    }
    if (notice.is_due(elapsed)) {
      base::log(base::LogLevel::kInfo, who, ": waiting for ",
                missing_ranks(store, waiting_for, environment.size), " at ", endpoint, ", ",
                net::seconds_text(elapsed), " so far");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void refuse_second_server(c10d::Store& store, const std::string& endpoint) {
  // The first one serves the store but may not have signed in yet.
  constexpr std::int64_t kBoth = 2;
  const auto claims = std::max(kBoth, store.add(claim_key(0), 1));
  refuse(store, ErrorCode::kInvalidArgument, claimed_twice(0, claims, endpoint));
}

}  // namespace fsdp::comm::detail
