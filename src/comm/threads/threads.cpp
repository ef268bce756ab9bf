// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/threads.hpp"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/failure/collective_log.hpp"
#include "comm/fingerprint.hpp"
#include "comm/group_of_one.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/seat.hpp"
#include "comm/threads/thread_group.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {

namespace {

/// What a rank's collectives in one group share.
struct Side {
  std::shared_ptr<ThreadGroup> group;
  detail::SeatPointer seat;
};

/// One rank's part of an exchange. `read` copies or sums from the peers' sources.
class ThreadsWork : public Work {
 public:
  ThreadsWork(Side side, const detail::Fingerprint& fingerprint, at::Tensor dst, at::Tensor src)
      : group_(std::move(side.group)),
        seat_(std::move(side.seat)),
        fingerprint_(fingerprint),
        dst_(std::move(dst)),
        src_(std::move(src)),
        exchange_(group_->post(*seat_, fingerprint_,
                               src_.defined() ? src_.const_data_ptr() : nullptr, -1)) {}

  ~ThreadsWork() override { group_->leave(*exchange_, fingerprint_.rank, complete_); }

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    detail::WaitRecord record(*seat_->log, fingerprint_);
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

  std::size_t rank() const { return static_cast<std::size_t>(seat_->index); }
  std::size_t slice_bytes() const { return static_cast<std::size_t>(fingerprint_.bytes); }
  const at::Tensor& dst() const { return dst_; }
  const at::Tensor& src() const { return src_; }

 private:
  std::shared_ptr<ThreadGroup> group_;
  detail::SeatPointer seat_;
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
                    at::Tensor src, Finish finish)
      : ThreadsWork(std::move(side), fingerprint, std::move(dst), std::move(src)),
        finish_(finish) {}

 private:
  void read(std::span<const void* const> sources) override {
    if (slice_bytes() == 0) {
      return;
    }
    std::vector<const void*> slices(sources.size());
    for (std::size_t r = 0; r < sources.size(); ++r) {
      slices[r] = static_cast<const std::byte*>(sources[r]) + rank() * slice_bytes();
    }
    detail::reduce_slices(dst().mutable_data_ptr(), dst().scalar_type(), slices, dst().numel(),
                          src().scalar_type(), finish_);
  }

  Finish finish_;
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

class PublishWork : public ThreadsWork {
 public:
  PublishWork(Side side, const detail::Fingerprint& fingerprint)
      : ThreadsWork(std::move(side), fingerprint, {}, {}) {}

 private:
  void read(std::span<const void* const>) override {}
};

class ThreadsTransport final : public detail::HostTransport {
 public:
  ThreadsTransport(std::shared_ptr<ThreadGroup> group, detail::SeatPointer seat,
                   std::shared_ptr<detail::GroupNumbers> numbers)
      : HostTransport(detail::threads_traits()),
        side_{std::move(group), std::move(seat)},
        numbers_(std::move(numbers)),
        generation_(side_.group->generation()) {}

  int rank() const override { return side_.seat->index; }
  int size() const override { return side_.seat->size(); }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const auto fingerprint = next(detail::check_all_gather(*this, dst, src, label));
    return std::make_unique<AllGatherWork>(side_, fingerprint, std::move(dst), std::move(src));
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override {
    const auto fingerprint = next(detail::check_reduce_scatter(*this, dst, src, finish, label));
    return std::make_unique<ReduceScatterWork>(side_, fingerprint, std::move(dst), std::move(src),
                                               finish);
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const auto fingerprint = next(detail::check_broadcast(*this, buffer, root, label));
    return std::make_unique<BroadcastWork>(side_, fingerprint, buffer);
  }

  std::unique_ptr<Work> publish(const Label& label) override {
    return std::make_unique<PublishWork>(side_, next(detail::describe_agree(label)));
  }

  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override {
    side_.group->set_timeout(timeout);
  }
  std::chrono::milliseconds timeout() const override { return side_.group->timeout(); }

  void announce(const Announcement& announcement) override {
    side_.seat->announced->add(detail::describe(announcement), generation());
  }

  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override;

  void recover() override { side_.group->recover(side_.seat->rank()); }
  std::uint64_t generation() const override { return side_.group->generation(); }

  void publish_failure(const std::string& text) noexcept override {
    side_.group->publish_failure(side_.seat->rank(), text);
  }
  std::string first_failure() noexcept override { return side_.group->first_failure(); }

 private:
  detail::Fingerprint next(const detail::Description& description) {
    if (const std::uint64_t current = generation(); current != generation_) {
      generation_ = current;
      sequence_ = 0;
    }
    const auto fingerprint =
        detail::make_fingerprint(description, ++sequence_, *side_.seat, generation_);
    side_.seat->log->start(fingerprint);
    return fingerprint;
  }

  Side side_;
  std::shared_ptr<detail::GroupNumbers> numbers_;
  std::uint64_t sequence_ = 0;
  std::uint64_t generation_;  ///< that of `sequence_`
};

std::shared_ptr<detail::HostTransport> ThreadsTransport::make_part(const std::vector<int>& ranks,
                                                                   const std::string& label) {
  auto seat = detail::agree_on_split(*this, traits().name, *side_.seat, *numbers_, ranks, label,
                                     side_.group->size());
  if (seat->size() == 1) {
    return detail::make_group_of_one(link());
  }
  return std::make_shared<ThreadsTransport>(side_.group, std::move(seat), numbers_);
}

at::Tensor ThreadsTransport::shared_memory(std::int64_t bytes, const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
  detail::Description description = detail::describe_agree(label);
  description.bytes = bytes;
  const detail::Fingerprint fingerprint = next(description);
  const auto exchange = side_.group->post(*side_.seat, fingerprint, nullptr, bytes);
  std::shared_ptr<void> memory;
  bool complete = false;
  detail::WaitRecord record(*side_.seat->log, fingerprint);
  try {
    side_.group->begin_reading(*exchange, fingerprint);
    memory = exchange->memory;
    side_.group->finish_reading(*exchange, fingerprint);
    complete = true;
  } catch (...) {
    side_.group->leave(*exchange, fingerprint.rank, complete);
    throw;
  }
  side_.group->leave(*exchange, fingerprint.rank, complete);
  record.complete();
  void* data = memory.get();
  return at::from_blob(data, {bytes}, [memory](void*) {}, at::TensorOptions(at::kByte));
}

}  // namespace

std::shared_ptr<ThreadGroup> make_thread_group(int size, detail::Milliseconds timeout) {
  return std::make_shared<ThreadGroup>(size, timeout);
}

std::shared_ptr<detail::HostTransport> make_threads_transport(std::shared_ptr<ThreadGroup> group,
                                                              int rank) {
  auto seat = detail::whole_seat("threads", rank, group->size());
  return std::make_shared<ThreadsTransport>(std::move(group), std::move(seat),
                                            std::make_shared<detail::GroupNumbers>());
}

}  // namespace fsdp::comm
