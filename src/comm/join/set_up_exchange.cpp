// SPDX-License-Identifier: Apache-2.0
#include "comm/join/set_up_exchange.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/deadline.hpp"
#include "comm/failure/quiet_store.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPatienceForReaders{1000};
constexpr Milliseconds kPatienceForStore{500};

/// Polls, so that a rank that says nothing is an error of ours and no exception of the store's.
bool poll_until(Clock::time_point deadline, const std::function<bool()>& holds) {
  for (Milliseconds pause{1}; !holds(); pause = std::min(pause * 2, Milliseconds(20))) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

std::vector<std::string> exchange(const SetUp& set_up, const std::string& topic,
                                  const std::string& mine) {
  const auto key = [&](int rank) { return "fsdp/" + topic + "/" + std::to_string(rank); };
  const auto deadline = Clock::now() + set_up.timeout;
  std::vector<std::string> texts;
  const QuietStore quiet;
  try {
    set_up.store->set(key(set_up.rank), mine);
    for (int peer = 0; peer < set_up.size; ++peer) {
      const bool is_there = poll_until(deadline, [&] { return set_up.store->check({key(peer)}); });
      FSDP_CHECK(is_there, ErrorCode::kTimeout, "rank ", set_up.rank, " waited ",
                 to_text(set_up.timeout), " for rank ", peer,
                 ", which has met the others but says no more (set-up step: ", topic,
                 "). Is it stopped?");
      const std::vector<std::uint8_t> bytes = set_up.store->get(key(peer));
      texts.emplace_back(bytes.begin(), bytes.end());
    }
    const std::string readers = "fsdp/" + topic + "/readers";
    set_up.store->add(readers, 1);
    if (set_up.rank == 0) {
      poll_until(Clock::now() + kPatienceForReaders,
                 [&] { return set_up.store->add(readers, 0) >= set_up.size; });
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    if (texts.size() == static_cast<std::size_t>(set_up.size)) {
      return texts;
    }
    fail(ErrorCode::kPeerFailed, "rank ", set_up.rank, " waits for rank ", texts.size(), " (",
         topic,
         "), but the job's store, on rank 0 or torchrun's agent, does not answer: has rank 0 ended "
         "or is it stopped?");
  }
  return texts;
}

}  // namespace

std::vector<std::string> exchange_texts(const SetUp& set_up, const std::string& topic,
                                        const std::string& mine) {
  // A client waits for ever for a store whose process is stopped: see NOTE [the board's thread].
  const auto texts = std::make_shared<std::vector<std::string>>();
  FSDP_CHECK(
      finishes_within(set_up.timeout + kPatienceForReaders + kPatienceForStore,
                      [set_up, topic, mine, texts] { *texts = exchange(set_up, topic, mine); }),
      ErrorCode::kTimeout, "rank ", set_up.rank, " waited ", to_text(set_up.timeout),
      " for the job's store (", topic,
      "): rank 0, or torchrun's agent, serves it and does not answer. Is it stopped?");
  return std::move(*texts);
}

}  // namespace fsdp::comm::detail
