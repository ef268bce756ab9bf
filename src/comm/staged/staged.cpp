// SPDX-License-Identifier: Apache-2.0
#include "comm/staged/staged.hpp"

#include <c10/core/StreamGuard.h>

#include <cstddef>
#include <utility>

#include "comm/device/device_group_of_one.hpp"
#include "comm/device/device_streams.hpp"
#include "comm/device/device_transport.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/staging_pool.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// What all groups of a rank share. See NOTE [staged order].
class Stage {
 public:
  explicit Stage(c10::Device device) : streams_(device), stream_(streams_.take()) {}

  c10::Device device() const { return streams_.device(); }
  /// Apart, so that what is reserved for the one is not in use by the other.
  StagingPool& gathers() { return gathers_; }
  StagingPool& sums() { return sums_; }

  /// The stream's next copies come after what the caller's current stream has been given.
  void follow_caller() { stream_.wait(streams_.record(streams_.current())); }
  void copy(const at::Tensor& dst, const at::Tensor& src) {
    if (src.numel() != 0) {
      const c10::StreamGuard on_own(stream_);
      dst.copy_(src, /*non_blocking=*/true);
    }
  }
  /// @blocks until the copies have ended
  void finish() { streams_.record(stream_).synchronize(); }

 private:
  DeviceStreams streams_;
  c10::Stream stream_;
  StagingPool gathers_{StagingPool::Memory::kPinned};
  StagingPool sums_{StagingPool::Memory::kPinned};
};

/// Pinned memory of a collective, back in the pool when nobody uses it any more.
class Pinned {
 public:
  Pinned(std::shared_ptr<Stage> stage, StagingPool& pool, std::int64_t bytes)
      : stage_(std::move(stage)), pool_(&pool), bytes_(pool.take(bytes)) {}
  Pinned(Pinned&& other) noexcept = default;
  Pinned& operator=(Pinned&&) = delete;
  ~Pinned() {
    if (bytes_.defined()) {
      pool_->give_back(std::move(bytes_));
    }
  }

  /// [numel] of `dtype` at `offset` bytes.
  at::Tensor view(std::int64_t offset, std::int64_t numel, at::ScalarType dtype) const {
    // A view of the tensor itself, so that LibTorch knows the memory for pinned.
    const auto bytes = numel * static_cast<std::int64_t>(at::elementSize(dtype));
    return bytes_.narrow(0, offset, bytes).view(dtype);
  }

 private:
  std::shared_ptr<Stage> stage_;
  StagingPool* pool_;  ///< of `stage_`
  at::Tensor bytes_;
};

/// A collective of the host, and the copy of its result to the device.
class StagedWork : public Work {
 public:
  StagedWork(std::shared_ptr<Stage> stage, Pinned pinned, std::unique_ptr<Work> on_host,
             at::Tensor dst, at::Tensor result)
      : stage_(std::move(stage)),
        pinned_(std::move(pinned)),
        on_host_(std::move(on_host)),
        dst_(std::move(dst)),
        result_(std::move(result)) {}

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    const DispatchGuard guard;
    on_host_->wait();
    on_host_.reset();
    if (result_.defined()) {
      stage_->copy(dst_, result_);
      stage_->finish();
    }
  }

 private:
  std::shared_ptr<Stage> stage_;
  Pinned pinned_;                  // goes last: peers may read it until the collective is gone
  std::unique_ptr<Work> on_host_;  // before `pinned_`
  at::Tensor dst_;
  at::Tensor result_;  ///< undefined: there is nothing to copy back
  bool waited_ = false;
};

Traits traits_over(const Traits& host) {
  Traits traits = host;
  traits.name = staged_traits().name;
  traits.waits = Waits::kHost;
  traits.shares_memory = false;
  return traits;
}

constexpr std::int64_t kAlign = 64;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

class StagedTransport final : public DeviceTransport {
 public:
  StagedTransport(Link host, std::shared_ptr<Stage> stage)
      : DeviceTransport(traits_over(host.transport->traits()), host, stage->device()),
        stage_(std::move(stage)) {}

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override {
    const DispatchGuard guard;
    const std::int64_t bytes = aligned(max_src_bytes) + aligned(max_src_bytes / size());
    return reserve(stage_->sums(), bytes, in_flight) +
           host().transport->reserve_staging(max_src_bytes, in_flight);
  }

  std::int64_t reserve_gathers(std::int64_t max_dst_bytes, int in_flight) override {
    const DispatchGuard guard;
    return reserve(stage_->gathers(), max_dst_bytes, in_flight) +
           host().transport->reserve_gathers(max_dst_bytes, in_flight);
  }

  std::shared_ptr<Transport> split(const std::shared_ptr<Job>& part) override {
    Link of_part{part, host().transport->split(part)};
    if (part->size() == 1) {
      return make_device_group_of_one(std::move(of_part), device());
    }
    return std::make_shared<StagedTransport>(std::move(of_part), stage_);
  }

 private:
  /// What it adds, as groups share the pools.
  static std::int64_t reserve(StagingPool& pool, std::int64_t bytes, int in_flight) {
    const std::int64_t before = pool.idle_bytes();
    return pool.reserve(bytes, in_flight) - before;
  }

  std::unique_ptr<Work> gather_on_device(at::Tensor dst, at::Tensor src,
                                         const Call& call) override {
    Pinned pinned(stage_, stage_->gathers(), static_cast<std::int64_t>(dst.nbytes()));
    const at::Tensor all = pinned.view(0, dst.numel(), dst.scalar_type());
    const at::Tensor own = all.narrow(0, rank() * src.numel(), src.numel());
    stage_->follow_caller();
    stage_->copy(own, src);
    stage_->finish();
    auto on_host = host().transport->all_gather(all, own, call.label);
    return std::make_unique<StagedWork>(stage_, std::move(pinned), std::move(on_host), dst, all);
  }

  std::unique_ptr<Work> reduce_on_device(at::Tensor dst, at::Tensor src, Finish finish,
                                         const Call& call) override {
    const auto src_bytes = aligned(static_cast<std::int64_t>(src.nbytes()));
    Pinned pinned(stage_, stage_->sums(), src_bytes + static_cast<std::int64_t>(dst.nbytes()));
    const at::Tensor sources = pinned.view(0, src.numel(), src.scalar_type());
    const at::Tensor sum = pinned.view(src_bytes, dst.numel(), dst.scalar_type());
    stage_->follow_caller();
    stage_->copy(sources, src);
    if (finish.accumulate) {
      stage_->copy(sum, dst);
    }
    stage_->finish();
    auto on_host = host().transport->reduce_scatter(sum, sources, finish, call.label);
    return std::make_unique<StagedWork>(stage_, std::move(pinned), std::move(on_host), dst, sum);
  }

  std::unique_ptr<Work> broadcast_on_device(at::Tensor buffer, int root,
                                            const Call& call) override {
    Pinned pinned(stage_, stage_->gathers(), static_cast<std::int64_t>(buffer.nbytes()));
    const at::Tensor copy = pinned.view(0, buffer.numel(), buffer.scalar_type());
    stage_->follow_caller();
    if (rank() == root) {
      stage_->copy(copy, buffer);
      stage_->finish();
    }
    auto on_host = host().transport->broadcast(copy, root, call.label);
    return std::make_unique<StagedWork>(stage_, std::move(pinned), std::move(on_host), buffer,
                                        rank() == root ? at::Tensor() : copy);
  }

  const std::shared_ptr<Stage> stage_;
};

}  // namespace

Link make_staged_link(Link host, c10::Device device) {
  const DispatchGuard guard;
  auto job = host.job;
  return {std::move(job),
          std::make_shared<StagedTransport>(std::move(host), std::make_shared<Stage>(device))};
}

}  // namespace fsdp::comm::detail
