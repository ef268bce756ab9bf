// SPDX-License-Identifier: Apache-2.0
#include "comm/threads.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/fingerprint.hpp"
#include "comm/reduce_slices.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

// NOTE [life of an exchange]
// One collective of a thread group is an Exchange, found by its sequence number:
//
//   post   each rank writes its fingerprint and its source pointer; a rank whose fingerprint
//   differs
//          from an earlier one records the mismatch, so that everybody ends with the same text
//   read   entered once all have posted: ranks read each other's sources without the lock
//   done   a rank has read all it needs; its own source stays in use until every rank is done
//   left   the rank's Work is gone; the last one to leave removes the exchange
//
// A Work that is destroyed before wait() withdraws its source: nobody may start to read, and those
// already reading are waited for. The survivors wait a moment for the reason, because a Work
// dropped while an exception unwinds is followed by publish_failure.

namespace {
constexpr detail::Milliseconds kWaitForReason{1000};
}  // namespace

class ThreadGroup {
 public:
  struct Exchange {
    explicit Exchange(int size)
        : fingerprints(count(size)), sources(count(size)), posted(count(size)), done(count(size)) {}
    static std::size_t count(int size) { return static_cast<std::size_t>(size); }

    std::vector<detail::Fingerprint> fingerprints;
    std::vector<const void*> sources;
    std::vector<char> posted;
    std::vector<char> done;
    std::shared_ptr<void> memory;  // of shared_memory()
    std::optional<std::string> mismatch;
    std::optional<int> withdrawn_by;
    detail::Clock::time_point withdrawn_at;
    int readers = 0;
    int left = 0;
  };

  struct Failure {
    int rank;
    std::string text;
  };

  ThreadGroup(int size, detail::Milliseconds timeout) : size_(size), timeout_(timeout) {}

  int size() const { return size_; }
  void set_timeout(detail::Milliseconds timeout) {
    std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }

  std::shared_ptr<Exchange> post(const detail::Fingerprint& fingerprint, const void* source,
                                 std::int64_t memory_bytes);
  /// Until every rank has posted the same collective and this rank may read.
  void begin_reading(Exchange& exchange, const detail::Fingerprint& mine);
  /// Until every rank has read.
  void finish_reading(Exchange& exchange, const detail::Fingerprint& mine);
  /// This rank reads no more, but is not done: reading failed.
  void stop_reading(Exchange& exchange) noexcept;
  void leave(Exchange& exchange, const detail::Fingerprint& mine, bool complete) noexcept;
  void publish_failure(int rank, const std::string& text);

 private:
  using Lock = std::unique_lock<std::mutex>;

  template <class Ready>
  void wait(Lock& lock, Exchange& exchange, const detail::Fingerprint& mine,
            const std::vector<char>& arrived, Ready ready);
  void record_failure(int rank, const std::string& text);

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  detail::Milliseconds timeout_;
  std::map<std::uint64_t, std::shared_ptr<Exchange>> exchanges_;
  std::optional<Failure> failure_;
};

std::shared_ptr<ThreadGroup::Exchange> ThreadGroup::post(const detail::Fingerprint& fingerprint,
                                                         const void* source,
                                                         std::int64_t memory_bytes) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Exchange>& entry = exchanges_[fingerprint.sequence];
  if (!entry) {
    entry = std::make_shared<Exchange>(size_);
  }
  Exchange& exchange = *entry;
  for (std::size_t r = 0; r < exchange.posted.size() && !exchange.mismatch; ++r) {
    if (exchange.posted[r] && !detail::same_collective(exchange.fingerprints[r], fingerprint)) {
      exchange.mismatch = detail::describe_mismatch(exchange.fingerprints[r], fingerprint);
    }
  }
  if (memory_bytes >= 0 && !exchange.memory) {
    exchange.memory.reset(std::calloc(static_cast<std::size_t>(memory_bytes) + 64, 1), std::free);
    if (!exchange.memory) {
      throw std::bad_alloc();
    }
  }
  const auto me = static_cast<std::size_t>(fingerprint.rank);
  exchange.fingerprints[me] = fingerprint;
  exchange.sources[me] = source;
  exchange.posted[me] = 1;
  changed_.notify_all();
  return entry;
}

template <class Ready>
void ThreadGroup::wait(Lock& lock, Exchange& exchange, const detail::Fingerprint& mine,
                       const std::vector<char>& arrived, Ready ready) {
  const auto start = detail::Clock::now();
  const auto deadline = start + timeout_;
  while (!ready()) {
    if (exchange.mismatch) {
      fail(ErrorCode::kMismatch, *exchange.mismatch);
    }
    if (failure_) {
      fail(ErrorCode::kPeerFailed, detail::describe(mine), ": rank ", failure_->rank,
           " failed first: ", failure_->text);
    }
    auto wake = deadline;
    if (exchange.withdrawn_by) {
      wake = std::min(wake, exchange.withdrawn_at + kWaitForReason);
      if (detail::Clock::now() >= wake) {
        record_failure(*exchange.withdrawn_by, "it dropped " + detail::describe(mine) +
                                                   " before the collective was complete");
        continue;
      }
    }
    if (detail::Clock::now() >= deadline) {
      std::string missing;
      for (std::size_t r = 0; r < arrived.size(); ++r) {
        if (!arrived[r]) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(r);
        }
      }
      const std::string text = detail::describe(mine) + " waited " +
                               detail::to_text(std::chrono::duration_cast<detail::Milliseconds>(
                                   detail::Clock::now() - start)) +
                               " on rank " + std::to_string(mine.rank) + "; missing: " + missing +
                               ". Every rank must make this call; FSDP_TIMEOUT sets the limit";
      record_failure(mine.rank, text);
      fail(ErrorCode::kTimeout, text);
    }
    changed_.wait_until(lock, wake);
  }
}

void ThreadGroup::begin_reading(Exchange& exchange, const detail::Fingerprint& mine) {
  Lock lock(mutex_);
  wait(lock, exchange, mine, exchange.posted, [&] {
    return !exchange.mismatch && !exchange.withdrawn_by &&
           std::find(exchange.posted.begin(), exchange.posted.end(), 0) == exchange.posted.end();
  });
  ++exchange.readers;
}

void ThreadGroup::finish_reading(Exchange& exchange, const detail::Fingerprint& mine) {
  Lock lock(mutex_);
  --exchange.readers;
  exchange.done[static_cast<std::size_t>(mine.rank)] = 1;
  changed_.notify_all();
  wait(lock, exchange, mine, exchange.done, [&] {
    return std::find(exchange.done.begin(), exchange.done.end(), 0) == exchange.done.end();
  });
}

void ThreadGroup::stop_reading(Exchange& exchange) noexcept {
  std::lock_guard lock(mutex_);
  --exchange.readers;
  changed_.notify_all();
}

void ThreadGroup::leave(Exchange& exchange, const detail::Fingerprint& mine,
                        bool complete) noexcept {
  Lock lock(mutex_);
  if (!complete) {
    if (!exchange.withdrawn_by) {
      exchange.withdrawn_by = mine.rank;
      exchange.withdrawn_at = detail::Clock::now();
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return exchange.readers == 0; });
  }
  if (++exchange.left == size_) {
    exchanges_.erase(mine.sequence);
  }
}

void ThreadGroup::publish_failure(int rank, const std::string& text) {
  std::lock_guard lock(mutex_);
  record_failure(rank, text);
}

void ThreadGroup::record_failure(int rank, const std::string& text) {
  if (!failure_) {
    failure_ = Failure{rank, text};
    changed_.notify_all();
  }
}

namespace {

/// One rank's part of an exchange. `read` copies or sums from the peers' sources.
class ThreadsWork : public Work {
 public:
  ThreadsWork(std::shared_ptr<ThreadGroup> group, const detail::Fingerprint& fingerprint,
              at::Tensor dst, at::Tensor src)
      : group_(std::move(group)),
        fingerprint_(fingerprint),
        dst_(std::move(dst)),
        src_(std::move(src)),
        exchange_(
            group_->post(fingerprint_, src_.defined() ? src_.const_data_ptr() : nullptr, -1)) {}

  ~ThreadsWork() override { group_->leave(*exchange_, fingerprint_, complete_); }

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    group_->begin_reading(*exchange_, fingerprint_);
    try {
      read(exchange_->sources);
    } catch (...) {
      group_->stop_reading(*exchange_);
      throw;
    }
    group_->finish_reading(*exchange_, fingerprint_);
    complete_ = true;
  }

 protected:
  virtual void read(std::span<const void* const> sources) = 0;

  std::size_t rank() const { return static_cast<std::size_t>(fingerprint_.rank); }
  std::size_t slice_bytes() const { return static_cast<std::size_t>(fingerprint_.bytes); }
  const at::Tensor& dst() const { return dst_; }

 private:
  std::shared_ptr<ThreadGroup> group_;
  detail::Fingerprint fingerprint_;
  at::Tensor dst_;
  at::Tensor src_;
  std::shared_ptr<ThreadGroup::Exchange> exchange_;
  bool waited_ = false;
  bool complete_ = false;
};

class AllGatherWork : public ThreadsWork {
 public:
  using ThreadsWork::ThreadsWork;

 private:
  void read(std::span<const void* const> sources) override {
    if (slice_bytes() == 0) {
      return;
    }
    auto* dst_bytes = static_cast<std::byte*>(dst().mutable_data_ptr());
    for (std::size_t r = 0; r < sources.size(); ++r) {
      std::byte* slice = dst_bytes + r * slice_bytes();
      if (slice != sources[r]) {
        std::memcpy(slice, sources[r], slice_bytes());
      }
    }
  }
};

class ReduceScatterWork : public ThreadsWork {
 public:
  ReduceScatterWork(std::shared_ptr<ThreadGroup> group, const detail::Fingerprint& fingerprint,
                    at::Tensor dst, at::Tensor src, Reduction reduction)
      : ThreadsWork(std::move(group), fingerprint, std::move(dst), std::move(src)),
        reduction_(reduction) {}

 private:
  void read(std::span<const void* const> sources) override {
    if (slice_bytes() == 0) {
      return;
    }
    std::vector<const void*> slices(sources.size());
    for (std::size_t r = 0; r < sources.size(); ++r) {
      slices[r] = static_cast<const std::byte*>(sources[r]) + rank() * slice_bytes();
    }
    detail::reduce_slices(dst().mutable_data_ptr(), slices, dst().numel(), dst().scalar_type(),
                          reduction_);
  }

  Reduction reduction_;
};

class BroadcastWork : public ThreadsWork {
 public:
  BroadcastWork(std::shared_ptr<ThreadGroup> group, const detail::Fingerprint& fingerprint,
                const at::Tensor& buffer)
      : ThreadsWork(std::move(group), fingerprint, buffer, buffer),
        root_(static_cast<std::size_t>(fingerprint.root)) {}

 private:
  void read(std::span<const void* const> sources) override {
    if (rank() != root_ && slice_bytes() != 0) {
      std::memcpy(dst().mutable_data_ptr(), sources[root_], slice_bytes());
    }
  }

  std::size_t root_;
};

class AgreeWork : public ThreadsWork {
 public:
  AgreeWork(std::shared_ptr<ThreadGroup> group, const detail::Fingerprint& fingerprint)
      : ThreadsWork(std::move(group), fingerprint, {}, {}) {}

 private:
  void read(std::span<const void* const>) override {}
};

class ThreadsCommunicator : public Communicator {
 public:
  ThreadsCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string transport() const override { return "threads"; }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const auto fingerprint = next(detail::check_all_gather(dst, src, size(), label));
    return std::make_unique<AllGatherWork>(group_, fingerprint, std::move(dst), std::move(src));
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                       const Label& label) override {
    const auto fingerprint = next(detail::check_reduce_scatter(dst, src, size(), reduction, label));
    return std::make_unique<ReduceScatterWork>(group_, fingerprint, std::move(dst), std::move(src),
                                               reduction);
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const auto fingerprint = next(detail::check_broadcast(buffer, root, size(), label));
    return std::make_unique<BroadcastWork>(group_, fingerprint, buffer);
  }

  std::unique_ptr<Work> agree(const Label& label) override {
    return std::make_unique<AgreeWork>(group_, next(detail::describe_agree(label)));
  }

  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override { group_->set_timeout(timeout); }

 private:
  detail::Fingerprint next(const detail::Description& description) {
    return detail::make_fingerprint(description, ++sequence_, rank_);
  }

  std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  std::uint64_t sequence_ = 0;
};

at::Tensor ThreadsCommunicator::shared_memory(std::int64_t bytes, const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
  detail::Description description = detail::describe_agree(label);
  description.bytes = bytes;
  const detail::Fingerprint fingerprint = next(description);
  const auto exchange = group_->post(fingerprint, nullptr, bytes);
  std::shared_ptr<void> memory;
  bool complete = false;
  try {
    group_->begin_reading(*exchange, fingerprint);
    memory = exchange->memory;
    group_->finish_reading(*exchange, fingerprint);
    complete = true;
  } catch (...) {
    group_->leave(*exchange, fingerprint, complete);
    throw;
  }
  group_->leave(*exchange, fingerprint, complete);
  void* data = memory.get();
  return at::from_blob(data, {bytes}, [memory](void*) {}, at::TensorOptions(at::kByte));
}

}  // namespace

std::shared_ptr<ThreadGroup> make_thread_group(int size, detail::Milliseconds timeout) {
  return std::make_shared<ThreadGroup>(size, timeout);
}

std::shared_ptr<Communicator> make_threads_communicator(std::shared_ptr<ThreadGroup> group,
                                                        int rank) {
  return std::make_shared<ThreadsCommunicator>(std::move(group), rank);
}

void publish_failure(ThreadGroup& group, int rank, const std::string& text) {
  group.publish_failure(rank, text);
}

}  // namespace fsdp::comm
