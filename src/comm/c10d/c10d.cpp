// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/c10d.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/text.hpp"
#include "comm/c10d/c10d_traits.hpp"
#include "comm/c10d/self_check.hpp"
#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/failure/collective_log.hpp"
#include "comm/fingerprint.hpp"
#include "comm/host_transport.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/timeout.hpp"
#include "comm/wire.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm {
namespace {

using detail::Fingerprint;
using detail::Milliseconds;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

[[noreturn]] void report(const Fingerprint& fingerprint, Milliseconds timeout,
                         detail::Clock::time_point start, const std::exception& error) {
  const bool timed_out = detail::Clock::now() - start + Milliseconds(5) >= timeout;
  fail(timed_out ? ErrorCode::kTimeout : ErrorCode::kPeerFailed, detail::describe(fingerprint),
       " on rank ", fingerprint.rank, timed_out ? " waited " + detail::to_text(timeout) : " failed",
       ": ", base::first_line(error.what()),
       ". Every rank must make this call; FSDP_TIMEOUT sets the limit");
}

/// Moving needs no dtype, and backends do not know all of them (gloo: no complex numbers).
at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.detach().view({-1}).view(at::kByte); }

/// A collective, and what its wait needs.
struct Call {
  Fingerprint fingerprint;
  Milliseconds timeout;
  std::shared_ptr<detail::CollectiveLog> log;
};

/// A collective under way; nothing to wait for when no bytes move.
class C10dWorkAdapter : public Work {
 public:
  C10dWorkAdapter(const Call& call, C10dWork work) : call_(call), work_(std::move(work)) {}

  ~C10dWorkAdapter() override {
    if (work_) {
      // The backend still uses the caller's buffers.
      try {
        work_->wait(call_.timeout);
      } catch (...) {
      }
    }
  }

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    const detail::DispatchGuard guard;
    detail::WaitRecord record(*call_.log, call_.fingerprint);
    if (const C10dWork work = std::move(work_)) {
      const auto start = detail::Clock::now();
      try {
        work->wait(call_.timeout);
      } catch (const std::exception& error) {
        report(call_.fingerprint, call_.timeout, start, error);
      }
    }
    finish();
    record.complete();
  }

 protected:
  virtual void finish() {}

 private:
  const Call call_;
  C10dWork work_;
  bool waited_ = false;
};

/// A collective whose ranks never met: wait() throws what the headers said.
class RefusedWork : public Work {
 public:
  explicit RefusedWork(std::exception_ptr failure) : failure_(std::move(failure)) {}
  void wait() override { std::rethrow_exception(failure_); }

 private:
  std::exception_ptr failure_;
};

class GatherWork : public C10dWorkAdapter {
 public:
  GatherWork(const Call& call, C10dWork work, at::Tensor dst, at::Tensor src)
      : C10dWorkAdapter(call, std::move(work)), dst_(std::move(dst)), src_(std::move(src)) {}

 private:
  at::Tensor dst_;
  at::Tensor src_;
};

class ReduceScatterWork : public C10dWorkAdapter {
 public:
  ReduceScatterWork(const Call& call, C10dWork work, at::Tensor dst, at::Tensor src, at::Tensor sum,
                    Finish finish)
      : C10dWorkAdapter(call, std::move(work)),
        dst_(std::move(dst)),
        src_(std::move(src)),
        sum_(std::move(sum)),
        finish_(finish) {}

 private:
  void finish() override {
    if (dst_.numel() == 0 || sum_.is_same(dst_)) {
      return;
    }
    if (dst_.is_cpu()) {
      const void* sum = sum_.const_data_ptr();
      detail::reduce_slices(dst_.mutable_data_ptr(), dst_.scalar_type(), {&sum, 1}, dst_.numel(),
                            sum_.scalar_type(), finish_);
      return;
    }
    const at::Tensor scaled = sum_.to(at::kFloat).div(finish_.divisor);
    dst_.copy_(finish_.accumulate ? scaled.add(dst_) : scaled);
  }

  at::Tensor dst_;
  at::Tensor src_;
  at::Tensor sum_;
  Finish finish_;
};

class C10dTransport final : public detail::HostTransport {
 public:
  C10dTransport(c10::intrusive_ptr<c10d::Backend> backend, Milliseconds timeout)
      : HostTransport(
            {.name = "c10d", .sums = Sums::kBackend, .can_split = false, .can_recover = false}),
        backend_(std::move(backend)),
        timeout_(timeout),
        headers_(static_cast<std::size_t>(backend_->getSize())),
        log_(detail::CollectiveLog::create("c10d", rank(), size())) {}

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }

  /// Which devices a backend serves, only it knows; Gloo has no way to another.
  std::optional<std::string> refuses(c10::Device device) const override {
    return backend_->getBackendName() == "gloo" || device.is_meta()
               ? detail::refuse_all_but_cpu("c10d over " + backend_->getBackendName(), device)
               : std::nullopt;
  }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const detail::DispatchGuard guard;
    const auto description = detail::check_all_gather(*this, dst, src, label);
    return start(description, src.device(), [&](const Call& call) {
      C10dWork work;
      if (src.numel() != 0) {
        at::Tensor dst_bytes = as_bytes(dst);
        at::Tensor src_bytes = as_bytes(src);
        work =
            backend_->_allgather_base(dst_bytes, src_bytes, with_timeout<c10d::AllgatherOptions>());
      }
      return std::make_unique<GatherWork>(call, std::move(work), dst, src);
    });
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override {
    const detail::DispatchGuard guard;
    const auto description = detail::check_reduce_scatter(*this, dst, src, finish, label);
    return start(description, src.device(), [&](const Call& call) {
      // A backend would read a slice of src that it writes.
      at::Tensor moved =
          src.to(detail::wire_of(detail::Summing::kOnTheWay, dst.scalar_type(), src.scalar_type()));
      const bool is_plain =
          !finish.accumulate && finish.divisor == 1.0 && !dst.storage().is_alias_of(src.storage());
      at::Tensor sum = is_plain ? dst : at::empty_like(dst);
      C10dWork work;
      if (dst.numel() != 0) {
        work =
            backend_->_reduce_scatter_base(sum, moved, with_timeout<c10d::ReduceScatterOptions>());
      }
      return std::make_unique<ReduceScatterWork>(call, std::move(work), dst, moved, sum, finish);
    });
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const detail::DispatchGuard guard;
    const auto description = detail::check_broadcast(*this, buffer, root, label);
    return start(description, buffer.device(), [&](const Call& call) {
      C10dWork work;
      if (buffer.numel() != 0) {
        std::vector<at::Tensor> buffers{as_bytes(buffer)};
        auto options = with_timeout<c10d::BroadcastOptions>();
        options.rootRank = root;
        work = backend_->broadcast(buffers, options);
      }
      return std::make_unique<GatherWork>(call, std::move(work), buffer, buffer);
    });
  }

  std::unique_ptr<Work> publish(const Label& label) override {
    const detail::DispatchGuard guard;
    return start(detail::describe_agree(label), header_device_, [&](const Call& call) {
      return std::make_unique<C10dWorkAdapter>(call, C10dWork());
    });
  }

  /// What the backend stages is its own affair, and not known.
  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = std::max(timeout, Milliseconds(1));
  }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  void announce(const Announcement& announcement) override {
    announced_.add(detail::describe(announcement), generation());
  }

  std::shared_ptr<HostTransport> make_part(const std::vector<int>&,
                                           const std::string& label) override {
    fail(ErrorCode::kUnsupported, "split \"", label, "\": transport ", traits().name,
         " has no groups of ranks. Use transport gloo or shm (InitOptions::transport), or make one "
         "backend for each group and a World over each");
  }

  void recover() override {
    fail(ErrorCode::kUnsupported, "recover() on rank ", rank(),
         ": the c10d transport cannot connect again, as its backend belongs to the caller. Make a "
         "new backend and a new World, or end all ranks and start from a checkpoint");
  }

  std::uint64_t generation() const override { return 0; }

  /// A backend has no way to tell its peers: they see a closed connection or a time-out.
  void publish_failure(const std::string&) noexcept override {}
  std::string first_failure() noexcept override { return ""; }

 private:
  template <class Options>
  Options with_timeout() const {
    Options options;
    options.timeout = timeout_;
    return options;
  }

  template <class Post>
  std::unique_ptr<Work> start(const detail::Description& description, c10::Device device,
                              Post post) {
    detail::Description own = description;
    own.announced = announced_.hash;
    const Fingerprint mine = detail::make_fingerprint(own, ++sequence_, rank());
    header_device_ = device;
    log_->start(mine);
    try {
      detail::WaitRecord record(*log_, mine);
      meet(mine);
      record.complete();
    } catch (const Error&) {
      return std::make_unique<RefusedWork>(std::current_exception());
    }
    return post(Call{mine, timeout_, log_});
  }

  /// @throws Error kMismatch, kTimeout or kPeerFailed
  void meet(const Fingerprint& mine);

  c10::intrusive_ptr<c10d::Backend> backend_;
  Milliseconds timeout_;
  std::vector<Fingerprint> headers_;
  c10::Device header_device_{c10::kCPU};
  std::shared_ptr<detail::CollectiveLog> log_;
  at::Tensor sent_, received_;
  std::uint64_t sequence_ = 0;
  detail::Announced announced_;
};

void C10dTransport::meet(const Fingerprint& mine) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Fingerprint));
  const auto host = at::TensorOptions(at::kByte);
  if (!sent_.defined() || sent_.device() != header_device_) {
    sent_ = at::empty({kBytes}, host.device(header_device_));
    received_ = at::empty({kBytes * size()}, host.device(header_device_));
  }
  sent_.copy_(at::from_blob(const_cast<Fingerprint*>(&mine), {kBytes}, host));
  const auto start = detail::Clock::now();
  try {
    backend_->_allgather_base(received_, sent_, with_timeout<c10d::AllgatherOptions>())
        ->wait(timeout_);
    at::from_blob(headers_.data(), {kBytes * size()}, host).copy_(received_);
  } catch (const std::exception& error) {
    report(mine, timeout_, start, error);
  }
  if (const auto mismatch = detail::find_mismatch(headers_)) {
    fail(ErrorCode::kMismatch, *mismatch);
  }
}

}  // namespace

Link make_c10d_link(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout) {
  FSDP_CHECK(backend, ErrorCode::kInvalidArgument, "make_c10d_link: no backend");
  if (timeout.count() <= 0) {
    timeout = detail::default_timeout();
  }
  const std::string name = "the c10d backend \"" + backend->getBackendName() + "\"";
  const auto transport = std::make_shared<C10dTransport>(std::move(backend), timeout);
  detail::check_sums(*transport, name);
  return transport->link();
}

}  // namespace fsdp::comm
