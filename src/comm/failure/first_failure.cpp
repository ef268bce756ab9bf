// SPDX-License-Identifier: Apache-2.0
#include "comm/failure/first_failure.hpp"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/failure/quiet_store.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kPollInterval{20};
/// How long a caller waits for an answer of a store that may be stuck.
constexpr Milliseconds kPatienceForStore{700};
/// How long rank 0 keeps the store alive for those who have not read the failure yet.
constexpr Milliseconds kPatienceForReaders{1000};
/// How long the end of the board's thread is waited for.
constexpr Milliseconds kPatienceForThread{200};

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

/// How long a caller waits for the answer to a request.
struct FailureBoard::Limit {
  Milliseconds patience = kPatienceForStore;
  bool waits_for_late = false;  ///< also where an earlier request has no answer yet

  static Limit until(Clock::time_point deadline) {
    return {.patience = std::max(remaining(deadline), kPatienceForStore), .waits_for_late = true};
  }
};

/// What the board and its thread share; the thread may outlive the board.
struct FailureBoard::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string failure_key;
  std::string readers_key;
  std::string left_key;  ///< followed by a rank

  std::mutex mutex;
  std::condition_variable changed;
  using Task = std::packaged_task<std::string()>;
  std::shared_ptr<Task> request;
  bool wants_look = false;
  bool is_stopping = false;
  bool has_stopped = false;
  bool is_gone = false;  ///< the store has ended
  bool is_late = false;  ///< what the thread is at takes longer than its caller has waited
  bool has_failure = false;

  /// The body of the board's thread.
  void run();
  /// Has `action` run on the board's thread; empty when there is no answer in time.
  std::string ask(const Limit& limit, std::function<std::string()> action) noexcept;

  // On the board's thread.
  std::string guard(const std::function<std::string()>& action);
  std::string look();
  std::string write(const std::string& line);
  void note_failure();
  std::string wait_for_readers();
};

void FailureBoard::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return is_stopping || wants_look || request; });
    if (is_stopping) {
      break;
    }
    const bool looks = std::exchange(wants_look, false);
    const std::shared_ptr<Task> task = std::exchange(request, nullptr);
    changed.notify_all();
    lock.unlock();
    if (task) {
      (*task)();
    } else if (looks) {
      guard([this] { return look(); });
    }
    lock.lock();
    is_late = false;
  }
  has_stopped = true;
  changed.notify_all();
}

std::string FailureBoard::State::ask(const Limit& limit,
                                     std::function<std::string()> action) noexcept {
  try {
    const auto task =
        std::make_shared<Task>([this, action = std::move(action)] { return guard(action); });
    auto answer = task->get_future();
    const auto deadline = Clock::now() + limit.patience;
    std::unique_lock lock(mutex);
    if (is_gone || (is_late && !limit.waits_for_late) ||
        !changed.wait_until(lock, deadline, [&] { return !request; })) {
      return "";
    }
    request = task;
    changed.notify_all();
    lock.unlock();
    answer.wait_until(deadline);
    lock.lock();
    if (answer.wait_for(Milliseconds(0)) == std::future_status::ready) {
      return answer.get();
    }
    if (request == task) {  // not begun: what nobody waits for must not happen later
      request = nullptr;
      changed.notify_all();
    }
    is_late = true;
  } catch (...) {
    return "";  // out of memory, say: as good as no answer
  }
  return "";
}

std::string FailureBoard::State::guard(const std::function<std::string()>& action) {
  try {
    const QuietStore quiet;
    return action();
  } catch (...) {
    std::lock_guard lock(mutex);
    is_gone = true;
    return "";
  }
}

std::string FailureBoard::State::look() {
  if (!store->check({failure_key})) {
    return "";
  }
  std::string text = text_of(store->get(failure_key));
  note_failure();
  return text;
}

std::string FailureBoard::State::write(const std::string& line) {
  const std::vector<std::uint8_t> absent;
  const std::vector<std::uint8_t> mine(line.begin(), line.end());
  std::string text = text_of(store->compareSet(failure_key, absent, mine));
  note_failure();
  return text;
}

void FailureBoard::State::note_failure() {
  std::unique_lock lock(mutex);
  const bool is_new = !std::exchange(has_failure, true);
  lock.unlock();
  if (is_new) {
    store->add(readers_key, 1);
  }
}

std::string FailureBoard::State::wait_for_readers() {
  const auto deadline = Clock::now() + kPatienceForReaders;
  while (Clock::now() < deadline && store->add(readers_key, 0) < size) {
    std::this_thread::sleep_for(kPollInterval);
  }
  return "";
}

FailureBoard::FailureBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           std::uint64_t generation)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->size = size;
  state_->failure_key = "fsdp/failure/" + std::to_string(generation);
  state_->readers_key = "fsdp/failure_readers/" + std::to_string(generation);
  state_->left_key = "fsdp/left/" + std::to_string(generation) + "/";
  std::thread([state = state_] { state->run(); }).detach();
}

FailureBoard::~FailureBoard() {
  if (state_->rank == 0 && has_failure()) {
    state_->ask({.patience = kPatienceForReaders + kPatienceForStore},
                [state = state_.get()] { return state->wait_for_readers(); });
  }
  std::unique_lock lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatienceForThread, [&] { return state_->has_stopped; });
}

std::string FailureBoard::publish(const std::string& text) noexcept {
  return publish(text, Limit());
}

std::string FailureBoard::publish(const std::string& text, Clock::time_point deadline) noexcept {
  return publish(text, Limit::until(deadline));
}

std::string FailureBoard::publish(const std::string& text, const Limit& limit) noexcept {
  return state_->ask(limit, [state = state_.get(), text] {
    return state->write("rank " + std::to_string(state->rank) + ": " + text);
  });
}

std::string FailureBoard::read(Milliseconds patience) noexcept {
  return state_->ask({.patience = patience + kPatienceForStore}, [state = state_.get(), patience] {
    const auto deadline = Clock::now() + patience;
    std::string text = state->look();
    while (text.empty() && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPollInterval);
      text = state->look();
    }
    return text;
  });
}

void FailureBoard::say_goodbye() noexcept {
  add(state_->left_key + std::to_string(state_->rank), 1);
}

bool FailureBoard::has_left(int rank) noexcept {
  return add(state_->left_key + std::to_string(rank), 0) > 0;
}

void FailureBoard::look_soon() noexcept {
  std::lock_guard lock(state_->mutex);
  state_->wants_look = !state_->is_gone && !state_->is_late;
  state_->changed.notify_all();
}

bool FailureBoard::has_failure() const noexcept {
  std::lock_guard lock(state_->mutex);
  return state_->has_failure;
}

std::int64_t FailureBoard::add(const std::string& key, std::int64_t delta) noexcept {
  return add(key, delta, Limit());
}

std::int64_t FailureBoard::add(const std::string& key, std::int64_t delta,
                               Clock::time_point deadline) noexcept {
  return add(key, delta, Limit::until(deadline));
}

std::int64_t FailureBoard::add(const std::string& key, std::int64_t delta,
                               const Limit& limit) noexcept {
  const std::string sum = state_->ask(limit, [state = state_.get(), key, delta] {
    return std::to_string(state->store->add(key, delta));
  });
  return sum.empty() ? -1 : std::stoll(sum);
}

}  // namespace fsdp::comm::detail
