// SPDX-License-Identifier: Apache-2.0
#include "comm/regroup.hpp"

#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};

/// "here": the rank waits for the others. "came": it did, even if it has given up since.
std::string key_of(const char* what, std::uint64_t generation, int rank) {
  return "fsdp/recover/" + std::to_string(generation) + "/" + what + "/" + std::to_string(rank);
}

std::int64_t add(FailureBoard& board, const std::string& key, std::int64_t delta, int rank) {
  const std::int64_t sum = board.add(key, delta);
  FSDP_CHECK(sum >= 0, ErrorCode::kPeerFailed, "recover() on rank ", rank,
             ": the job's store (on rank 0, or torchrun's agent) does not answer. A process that "
             "has ended cannot come back: start the job again from a checkpoint");
  return sum;
}

}  // namespace

void meet_again(FailureBoard& board, int rank, int size, std::uint64_t generation,
                Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  add(board, key_of("came", generation, rank), 1, rank);
  add(board, key_of("here", generation, rank), 1, rank);
  for (int peer = 0; peer < size;) {
    if (add(board, key_of("here", generation, peer), 0, rank) > 0) {
      ++peer;
      continue;
    }
    if (Clock::now() >= deadline) {
      std::string missing;
      for (int other = 0; other < size; ++other) {
        if (add(board, key_of("came", generation, other), 0, rank) == 0) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(other);
        }
      }
      add(board, key_of("here", generation, rank), -1, rank);
      fail(ErrorCode::kTimeout, "recover() on rank ", rank, " waited ", to_text(timeout),
           "; missing: ", missing,
           ". Every rank must make this call, and a process that has ended cannot; FSDP_TIMEOUT "
           "sets the limit");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::string describe_silent_ranks(c10d::Store& store, int rank, int size) noexcept {
  constexpr Milliseconds kPatience{1000};
  const auto key = [](int of) { return "fsdp/not_connected/" + std::to_string(of); };
  try {
    store.add(key(rank), 1);
    const auto deadline = Clock::now() + kPatience;
    std::string silent;
    for (int peer = 0; peer < size; ++peer) {
      while (!store.check({key(peer)}) && Clock::now() < deadline) {
        std::this_thread::sleep_for(kPollInterval);
      }
      if (!store.check({key(peer)})) {
        silent += (silent.empty() ? "; missing: " : ", ") + std::to_string(peer);
      }
    }
    return silent;
  } catch (...) {
    return rank == 0 ? "" : "; missing: 0, which serves the job's store";
  }
}

}  // namespace fsdp::comm::detail
