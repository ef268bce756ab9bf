// SPDX-License-Identifier: Apache-2.0
#include "comm/first_failure.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};
/// How often, and after how long a wait, the board is looked at.
constexpr Milliseconds kWatchInterval{200};
/// How long a caller waits for an answer of a store that may be stuck.
constexpr Milliseconds kPatienceForStore{1000};
/// How long rank 0 keeps the store alive for those who have not read the failure yet.
constexpr Milliseconds kPatienceForReaders{1000};

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

struct FailureBoard::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string failure_key;
  std::string readers_key;

  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> request;
  bool is_stopping = false;
  bool has_stopped = false;
  bool is_reachable = true;
  bool has_failure = false;
  c10::intrusive_ptr<c10d::Work> watched;
  Clock::time_point watched_since;

  void run();
  std::string look();
  std::string write(const std::string& line);
  void note_failure();
  /// Runs `action` on the board's thread; empty when there is no answer in time.
  std::string ask(Milliseconds patience, std::function<std::string()> action) noexcept;
};

/// The body of the board's thread.
void FailureBoard::State::run() {
  std::unique_lock lock(mutex);
  while (!is_stopping) {
    changed.wait_for(lock, kWatchInterval, [&] { return is_stopping || request; });
    const bool looks =
        watched && !has_failure && is_reachable && Clock::now() - watched_since >= kWatchInterval;
    const std::function<void()> action = std::exchange(request, nullptr);
    changed.notify_all();
    lock.unlock();
    if (action) {
      action();
    } else if (looks) {
      look();
    }
    lock.lock();
  }
  has_stopped = true;
  changed.notify_all();
}

/// On the board's thread, as is all that follows: what the board says.
std::string FailureBoard::State::look() {
  try {
    if (!store->check({failure_key})) {
      return "";
    }
    const std::string text = text_of(store->get(failure_key));
    note_failure();
    return text;
  } catch (...) {
    std::lock_guard lock(mutex);
    is_reachable = false;
    return "";
  }
}

std::string FailureBoard::State::write(const std::string& line) {
  try {
    const std::vector<std::uint8_t> absent;
    const std::string text =
        text_of(store->compareSet(failure_key, absent, {line.begin(), line.end()}));
    note_failure();
    return text;
  } catch (...) {
    std::lock_guard lock(mutex);
    is_reachable = false;
    return "";
  }
}

void FailureBoard::State::note_failure() {
  bool is_new = false;
  {
    std::lock_guard lock(mutex);
    is_new = !std::exchange(has_failure, true);
    if (watched) {
      watched->abort();
    }
  }
  if (is_new) {
    store->add(readers_key, 1);
  }
}

std::string FailureBoard::State::ask(Milliseconds patience,
                                     std::function<std::string()> action) noexcept {
  try {
    const auto task = std::make_shared<std::packaged_task<std::string()>>(std::move(action));
    auto answer = task->get_future();
    const auto deadline = Clock::now() + patience;
    {
      std::unique_lock lock(mutex);
      // A request that is stuck leaves the next one waiting.
      if (!changed.wait_until(lock, deadline, [&] { return !request; })) {
        return "";
      }
      request = [task] { (*task)(); };
      changed.notify_all();
    }
    if (answer.wait_until(deadline) != std::future_status::ready) {
      std::lock_guard lock(mutex);
      is_reachable = false;
      return "";
    }
    return answer.get();
  } catch (...) {
    return "";
  }
}

FailureBoard::FailureBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           std::uint64_t generation)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->size = size;
  state_->failure_key = "fsdp/failure/" + std::to_string(generation);
  state_->readers_key = "fsdp/failure_readers/" + std::to_string(generation);
  std::thread([state = state_] { state->run(); }).detach();
}

FailureBoard::~FailureBoard() {
  std::unique_lock lock(state_->mutex);
  if (state_->rank == 0 && state_->has_failure) {
    lock.unlock();
    state_->ask(kPatienceForReaders + kPatienceForStore, [state = state_.get()] {
      const auto deadline = Clock::now() + kPatienceForReaders;
      while (Clock::now() < deadline && state->store->add(state->readers_key, 0) < state->size) {
        std::this_thread::sleep_for(kPollInterval);
      }
      return std::string();
    });
    lock.lock();
  }
  state_->is_stopping = true;
  state_->changed.notify_all();
  // A thread that is stuck in the store is left to itself; it owns what it uses.
  state_->changed.wait_for(lock, kWatchInterval, [&] { return state_->has_stopped; });
}

std::string FailureBoard::publish(const std::string& text) noexcept {
  return state_->ask(kPatienceForStore, [state = state_, text] {
    return state->write("rank " + std::to_string(state->rank) + ": " + text);
  });
}

std::string FailureBoard::read(Milliseconds patience) noexcept {
  return state_->ask(patience + kPatienceForStore, [state = state_, patience] {
    const auto deadline = Clock::now() + patience;
    std::string text = state->look();
    while (text.empty() && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPollInterval);
      text = state->look();
    }
    return text;
  });
}

std::int64_t FailureBoard::add(const std::string& key, std::int64_t delta) noexcept {
  const std::string sum = state_->ask(kPatienceForStore, [state = state_, key, delta] {
    try {
      return std::to_string(state->store->add(key, delta));
    } catch (...) {
      return std::string();
    }
  });
  return sum.empty() ? -1 : std::stoll(sum);
}

void FailureBoard::watch(c10::intrusive_ptr<c10d::Work> work) noexcept {
  std::lock_guard lock(state_->mutex);
  state_->watched = std::move(work);
  state_->watched_since = Clock::now();
  if (state_->watched && state_->has_failure) {
    state_->watched->abort();
  }
}

}  // namespace fsdp::comm::detail
