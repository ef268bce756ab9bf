// SPDX-License-Identifier: Apache-2.0
#include "comm/join/regroup.hpp"

#include <memory>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/text.hpp"
#include "comm/deadline.hpp"
#include "comm/failure/quiet_store.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};
constexpr Milliseconds kPatienceForAnswers{700};
constexpr Milliseconds kPatienceForReaders{300};
constexpr Milliseconds kPatienceForStore{500};

/// "here": the rank waits for the others. "came": it did, even if it has given up since.
std::string key_of(const char* what, std::uint64_t generation, int rank) {
  return "fsdp/recover/" + std::to_string(generation) + "/" + what + "/" + std::to_string(rank);
}

std::int64_t add(FailureBoard& board, const std::string& key, std::int64_t delta, int rank,
                 Clock::time_point deadline) {
  const std::int64_t sum = board.add(key, delta, deadline);
  FSDP_CHECK(sum >= 0, ErrorCode::kPeerFailed, "recover() on rank ", rank,
             ": the job's store (on rank 0, or torchrun's agent) does not answer. A process that "
             "has ended cannot come back: start the job again from a checkpoint");
  return sum;
}

std::string not_connected_key(int rank) { return "fsdp/not_connected/" + std::to_string(rank); }

/// Those that do not say that they could not connect either. Rank 0 stays until the others have
/// read it, as it may serve the store.
std::string list_silent_ranks(c10d::Store& store, int rank, int size) {
  const QuietStore quiet;
  std::string silent;
  try {
    store.add(not_connected_key(rank), 1);
    const auto deadline = Clock::now() + kPatienceForAnswers;
    for (int peer = 0; peer < size; ++peer) {
      while (!store.check({not_connected_key(peer)}) && Clock::now() < deadline) {
        std::this_thread::sleep_for(kPollInterval);
      }
      if (!store.check({not_connected_key(peer)})) {
        base::append_to_list(silent, peer);
      }
    }
    if (rank == 0) {
      std::this_thread::sleep_for(kPatienceForReaders);
    }
    return silent;
  } catch (...) {
    return rank == 0 || !silent.empty() ? silent : "0, which serves the job's store";
  }
}

}  // namespace

void meet_again(FailureBoard& board, int rank, int size, std::uint64_t generation,
                Milliseconds timeout, Clock::time_point deadline) {
  add(board, key_of("came", generation, rank), 1, rank, deadline);
  add(board, key_of("here", generation, rank), 1, rank, deadline);
  for (int peer = 0; peer < size;) {
    if (add(board, key_of("here", generation, peer), 0, rank, deadline) > 0) {
      ++peer;
      continue;
    }
    if (Clock::now() >= deadline) {
      std::string missing;
      for (int other = 0; other < size; ++other) {
        if (add(board, key_of("came", generation, other), 0, rank, deadline) == 0) {
          base::append_to_list(missing, other);
        }
      }
      add(board, key_of("here", generation, rank), -1, rank, deadline);
      fail(ErrorCode::kTimeout, "recover() on rank ", rank, " waited ", to_text(timeout),
           "; missing: ", missing,
           ". Every rank must make this call, and a process that has ended cannot; FSDP_TIMEOUT "
           "sets the limit");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void announce_not_connected(const c10::intrusive_ptr<c10d::Store>& store, int rank) noexcept {
  try {
    finishes_within(kPatienceForStore, [store, rank] {
      const QuietStore quiet;
      store->add(not_connected_key(rank), 1);
    });
  } catch (...) {
  }
}

[[noreturn]] void fail_to_connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  const std::string& cause) {
  const auto missing = std::make_shared<std::string>();
  const bool answered = finishes_within(
      kPatienceForAnswers + kPatienceForReaders + kPatienceForStore,
      [store, rank, size, missing] { *missing = list_silent_ranks(*store, rank, size); });
  const std::string silent = !answered ? "0, which serves the job's store" : *missing;
  fail(ErrorCode::kPeerFailed, "rank ", rank, " of ", size,
       " could not connect to its peers: ", cause, silent.empty() ? "" : "; missing: ", silent,
       ". GLOO_SOCKET_IFNAME names the network interface to use");
}

}  // namespace fsdp::comm::detail
