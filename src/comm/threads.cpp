// SPDX-License-Identifier: Apache-2.0
#include "comm/threads.hpp"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/checks.hpp"
#include "comm/collective_log.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/fingerprint.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/thread_group.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

namespace {

/// What a rank's collectives share.
struct Side {
  std::shared_ptr<ThreadGroup> group;
  std::shared_ptr<detail::CollectiveLog> log;
};

/// One rank's part of an exchange. `read` copies or sums from the peers' sources.
class ThreadsWork : public Work {
 public:
  ThreadsWork(Side side, const detail::Fingerprint& fingerprint, at::Tensor dst, at::Tensor src)
      : group_(std::move(side.group)),
        log_(std::move(side.log)),
        fingerprint_(fingerprint),
        dst_(std::move(dst)),
        src_(std::move(src)),
        exchange_(
            group_->post(fingerprint_, src_.defined() ? src_.const_data_ptr() : nullptr, -1)) {}

  ~ThreadsWork() override { group_->leave(*exchange_, fingerprint_, complete_); }

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    detail::WaitRecord record(*log_, fingerprint_);
    group_->begin_reading(*exchange_, fingerprint_);
    try {
      read(exchange_->sources);
    } catch (...) {
      group_->stop_reading(*exchange_);
      throw;
    }
    group_->finish_reading(*exchange_, fingerprint_);
    complete_ = true;
    record.complete();
  }

 protected:
  virtual void read(std::span<const void* const> sources) = 0;

  std::size_t rank() const { return static_cast<std::size_t>(fingerprint_.rank); }
  std::size_t slice_bytes() const { return static_cast<std::size_t>(fingerprint_.bytes); }
  const at::Tensor& dst() const { return dst_; }

 private:
  std::shared_ptr<ThreadGroup> group_;
  std::shared_ptr<detail::CollectiveLog> log_;
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
  ReduceScatterWork(Side side, const detail::Fingerprint& fingerprint, at::Tensor dst,
                    at::Tensor src, Reduction reduction)
      : ThreadsWork(std::move(side), fingerprint, std::move(dst), std::move(src)),
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
  BroadcastWork(Side side, const detail::Fingerprint& fingerprint, const at::Tensor& buffer)
      : ThreadsWork(std::move(side), fingerprint, buffer, buffer),
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
  AgreeWork(Side side, const detail::Fingerprint& fingerprint)
      : ThreadsWork(std::move(side), fingerprint, {}, {}) {}

 private:
  void read(std::span<const void* const>) override {}
};

class ThreadsCommunicator : public Communicator {
 public:
  ThreadsCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : side_{std::move(group), {}}, rank_(rank) {
    side_.log = detail::CollectiveLog::create("threads", rank, size());
  }

  int rank() const override { return rank_; }
  int size() const override { return side_.group->size(); }
  std::string transport() const override { return "threads"; }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const auto fingerprint = next(detail::check_all_gather(dst, src, size(), label));
    return std::make_unique<AllGatherWork>(side_, fingerprint, std::move(dst), std::move(src));
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Reduction reduction,
                                       const Label& label) override {
    const auto fingerprint = next(detail::check_reduce_scatter(dst, src, size(), reduction, label));
    return std::make_unique<ReduceScatterWork>(side_, fingerprint, std::move(dst), std::move(src),
                                               reduction);
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const auto fingerprint = next(detail::check_broadcast(buffer, root, size(), label));
    return std::make_unique<BroadcastWork>(side_, fingerprint, buffer);
  }

  std::unique_ptr<Work> agree(const Label& label) override {
    return std::make_unique<AgreeWork>(side_, next(detail::describe_agree(label)));
  }

  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override {
    side_.group->set_timeout(timeout);
  }

  void recover() override {
    generation_ = side_.group->recover(rank_);
    sequence_ = 0;
  }

  std::uint64_t generation() const override { return generation_; }

  void publish_failure(const std::string& text) noexcept override {
    side_.group->publish_failure(rank_, text);
  }

 private:
  detail::Fingerprint next(const detail::Description& description) {
    const auto fingerprint = detail::make_fingerprint(description, ++sequence_, rank_);
    side_.log->start(fingerprint);
    return fingerprint;
  }

  Side side_;
  const int rank_;
  std::uint64_t sequence_ = 0;
  std::uint64_t generation_ = 0;
};

at::Tensor ThreadsCommunicator::shared_memory(std::int64_t bytes, const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
  detail::Description description = detail::describe_agree(label);
  description.bytes = bytes;
  const detail::Fingerprint fingerprint = next(description);
  const auto exchange = side_.group->post(fingerprint, nullptr, bytes);
  std::shared_ptr<void> memory;
  bool complete = false;
  detail::WaitRecord record(*side_.log, fingerprint);
  try {
    side_.group->begin_reading(*exchange, fingerprint);
    memory = exchange->memory;
    side_.group->finish_reading(*exchange, fingerprint);
    complete = true;
  } catch (...) {
    side_.group->leave(*exchange, fingerprint, complete);
    throw;
  }
  side_.group->leave(*exchange, fingerprint, complete);
  record.complete();
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

}  // namespace fsdp::comm
