// SPDX-License-Identifier: Apache-2.0
#include "comm/failure/collective_log.hpp"

#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "fsdp/base/log.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr int kShown = 10;

/// Every log that may still be alive.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<CollectiveLog>> logs;
};

Registry& registry() {
  // Never destroyed: the thread that serves SIGUSR1 may outlive main().
  static auto* all = new Registry;
  return *all;
}

bool logs_each() { return base::log_level() <= base::LogLevel::kDebug; }

std::string duration_text(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  seconds < 1 ? text << seconds * 1e3 << " ms" : text << seconds << " s";
  return text.str();
}

}  // namespace

CollectiveLog::CollectiveLog(std::string transport, int rank, int size)
    : transport_(std::move(transport)), rank_(rank), size_(size) {}

std::shared_ptr<CollectiveLog> CollectiveLog::create(std::string transport, int rank, int size) {
  std::shared_ptr<CollectiveLog> log(new CollectiveLog(std::move(transport), rank, size));
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.logs, [](const auto& other) { return other.expired(); });
  all.logs.push_back(log);
  return log;
}

void CollectiveLog::start(const Fingerprint& fingerprint) {
  {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[next_];
    next_ = (next_ + 1) % kEntries;
    entry = {};
    entry.fingerprint = fingerprint;
    entry.state = State::kStarted;
    entry.started = Clock::now();
  }
  if (logs_each()) {
    base::write_log(base::LogLevel::kDebug, describe_in_full(fingerprint) + " starts");
  }
}

CollectiveLog::Entry* CollectiveLog::find(const Fingerprint& fingerprint) {
  for (std::size_t back = 1; back <= kEntries; ++back) {
    Entry& entry = entries_[(next_ + kEntries - back) % kEntries];
    if (entry.state != State::kEmpty && entry.fingerprint.sequence == fingerprint.sequence) {
      return &entry;
    }
  }
  return nullptr;
}

void CollectiveLog::begin_wait(const Fingerprint& fingerprint) {
  std::lock_guard lock(mutex_);
  if (Entry* entry = find(fingerprint)) {
    entry->state = State::kWaiting;
    entry->wait_began = Clock::now();
  }
}

void CollectiveLog::end_wait(const Fingerprint& fingerprint, bool is_complete) {
  Clock::duration waited{};
  Clock::duration lasted{};
  {
    std::lock_guard lock(mutex_);
    if (Entry* entry = find(fingerprint)) {
      entry->state = is_complete ? State::kComplete : State::kFailed;
      entry->ended = Clock::now();
      waited = entry->ended - entry->wait_began;
      lasted = entry->ended - entry->started;
    }
  }
  if (logs_each()) {
    base::write_log(base::LogLevel::kDebug, comm::detail::describe(fingerprint) +
                                                (is_complete ? " is complete" : " failed") +
                                                ": under way " + duration_text(lasted) +
                                                ", waited for " + duration_text(waited));
  }
}

std::string CollectiveLog::describe(const Entry& entry, Clock::time_point now) const {
  std::string text = describe_in_full(entry.fingerprint);
  switch (entry.state) {
    case State::kStarted:
      return text + ": in flight, started " + duration_text(now - entry.started) + " ago";
    case State::kWaiting: return text + ": waiting for " + duration_text(now - entry.wait_began);
    case State::kComplete:
    case State::kFailed:
    case State::kEmpty: break;
  }
  return text + (entry.state == State::kFailed ? ": failed " : ": complete ") +
         duration_text(now - entry.ended) + " ago, waited for " +
         duration_text(entry.ended - entry.wait_began);
}

std::string CollectiveLog::describe() const {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  std::string current;
  std::string recent;
  for (std::size_t back = 1; back <= kEntries; ++back) {
    const Entry& entry = entries_[(next_ + kEntries - back) % kEntries];
    if (entry.state == State::kEmpty) {
      break;
    }
    if (entry.state == State::kWaiting) {
      current += (current.empty() ? "" : "; ") + describe(entry, now);
    }
    if (back <= kShown) {
      recent += "\n  " + describe(entry, now);
    }
  }
  return "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " (" + transport_ +
         "), now: " + (current.empty() ? "in no collective" : current) +
         (recent.empty() ? "; no collective so far"
                         : "\n last collectives, newest first:" + recent);
}

void print_collectives() {
  std::vector<std::shared_ptr<CollectiveLog>> alive;
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    for (const auto& log : all.logs) {
      if (auto locked = log.lock()) {
        alive.push_back(std::move(locked));
      }
    }
  }
  for (const auto& log : alive) {
    base::set_log_rank(log->rank());
    base::write_log(base::LogLevel::kInfo, log->describe());
  }
}

}  // namespace fsdp::comm::detail
