// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "comm/checks.hpp"
#include "comm/device/device_finish.hpp"
#include "comm/device/device_group_of_one.hpp"
#include "comm/device/device_streams.hpp"
#include "comm/device/device_transport.hpp"
#include "comm/device/stream_handle.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/failure/collective_log.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "comm/nccl/nccl_job.hpp"
#include "comm/nccl/nccl_watch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

using nccl::Communicator;
using nccl::Flight;
using nccl::Handle;
using nccl::Library;
using nccl::Watch;
using nccl::WatchedJob;

/// Float16 travels as float32, converted in pieces of at most this many bytes.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

nccl::DataType data_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return nccl::kFloat32;
    case at::kDouble: return nccl::kFloat64;
    case at::kBFloat16: return nccl::kBFloat16;
    case at::kInt: return nccl::kInt32;
    case at::kLong: return nccl::kInt64;
    default: break;
  }
  fail(ErrorCode::kInternal, "NCCL was to sum ", c10::toString(dtype));
}

/// What all groups of a rank share.
struct Lane {
  Lane(std::shared_ptr<const Library> nccl_library, std::shared_ptr<Job> whole, c10::Device device)
      : library(std::move(nccl_library)),
        streams(device),
        stream(streams.take()),
        watch(std::make_shared<Watch>(std::move(whole), device)) {}

  const std::shared_ptr<const Library> library;
  const DeviceStreams streams;
  const c10::Stream stream;
  const std::shared_ptr<Watch> watch;

  /// Makes sure of that much memory to sum in. What is under way on the stream keeps its own.
  void reserve(std::int64_t bytes) {
    if (!scratch_.defined() || scratch_.numel() < bytes) {
      const c10::StreamGuard on_own(stream);
      scratch_ = at::Tensor();
      scratch_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(streams.device()));
    }
  }
  std::int64_t scratch_bytes() const { return scratch_.defined() ? scratch_.numel() : 0; }
  /// [numel] of `dtype` at `offset` bytes, for the collective that is being started.
  at::Tensor scratch(std::int64_t offset, std::int64_t numel, at::ScalarType dtype) {
    const auto bytes = numel * static_cast<std::int64_t>(at::elementSize(dtype));
    reserve(offset + bytes);
    return scratch_.narrow(0, offset, bytes).view(dtype);
  }

 private:
  at::Tensor scratch_;
};

class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<Lane> lane, std::shared_ptr<Flight> flight,
           std::shared_ptr<CollectiveLog> log, at::Tensor dst, at::Tensor src)
      : lane_(std::move(lane)),
        flight_(std::move(flight)),
        log_(std::move(log)),
        dst_(std::move(dst)),
        src_(std::move(src)) {}

  ~NcclWork() override {
    if (!waited_) {  // what the caller's stream does to these tensors next must come after
      try {
        follow();
      } catch (const std::exception&) {  // the device is lost, and so is what it would do
      }
    }
  }

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    WaitRecord record(*log_, flight_->fingerprint);
    follow();
    if (const std::string failure = lane_->watch->failure(); !failure.empty()) {
      fail(ErrorCode::kPeerFailed, describe(flight_->fingerprint), " on rank ",
           flight_->fingerprint.rank, " was ended on ", lane_->streams.device().str(), ": ",
           failure);
    }
    record.complete();
  }

 private:
  void follow() { lane_->streams.current().wait(flight_->done); }

  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Flight> flight_;
  std::shared_ptr<CollectiveLog> log_;
  at::Tensor dst_;
  at::Tensor src_;
  bool waited_ = false;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(std::shared_ptr<Lane> lane, std::shared_ptr<WatchedJob> job, Link host,
                Milliseconds limit)
      : DeviceTransport(traits_over(host.transport->traits()), std::move(host),
                        lane->streams.device()),
        lane_(std::move(lane)),
        job_(std::move(job)),
        log_(CollectiveLog::create("nccl", rank(), size())) {
    connect(limit);
  }

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int) override {
    const DispatchGuard guard;
    const std::int64_t before = lane_->scratch_bytes();
    const std::int64_t slice = max_src_bytes / size();
    lane_->reserve(2 * slice + std::min(2 * max_src_bytes, kPieceBytes));
    return lane_->scratch_bytes() - before;
  }

  std::shared_ptr<Transport> split(const std::shared_ptr<Job>& part) override {
    const DispatchGuard guard;
    auto watched = std::dynamic_pointer_cast<WatchedJob>(part);
    FSDP_ASSERT(watched, "the part of another transport");
    Link of_part{watched->host(), host().transport->split(watched->host())};
    if (part->size() == 1) {
      return make_device_group_of_one(std::move(of_part), device());
    }
    const Milliseconds limit = part->timeout();
    return std::make_shared<NcclTransport>(lane_, std::move(watched), std::move(of_part), limit);
  }

 private:
  static Traits traits_over(const Traits& host) {
    Traits traits = nccl_traits();
    traits.can_split = host.can_split;
    traits.can_recover = host.can_recover;
    return traits;
  }

  void connect(Milliseconds limit) {
    generation_ = job_->generation();
    sequence_ = 0;
    communicator_ = Communicator::connect(lane_->library, *job_->host(), device(), limit);
    lane_->watch->add(communicator_);
  }

  /// Of this generation, and alive. @collective after a recovery
  void check_usable(const Call& call) {
    if (const std::string failure = lane_->watch->failure(); !failure.empty()) {
      fail(ErrorCode::kPeerFailed, to_string(static_cast<Operation>(call.description.operation)),
           " for \"", call.label.name, "\" on rank ", rank(), ": ", failure);
    }
    if (generation_ != job_->generation()) {
      connect(job_->timeout());
    }
  }

  /// See NOTE [order of a collective on the device]. `enqueue` runs with the stream current.
  template <class Enqueue>
  std::unique_ptr<Work> start(const Call& call, at::Tensor dst, at::Tensor src, Enqueue enqueue) {
    check_usable(call);
    job_->announce({.operation = static_cast<Operation>(call.description.operation),
                    .label = call.label,
                    .bytes = call.description.bytes,
                    .dtype = std::string(call.description.dtype)});
    const auto flight = lane_->watch->take();
    flight->fingerprint = make_fingerprint(call.description, ++sequence_, rank());
    flight->began = Clock::now();
    flight->state = Flight::State::kBeingIssued;
    log_->start(flight->fingerprint);
    flight->ready.record(lane_->streams.current());
    lane_->stream.wait(flight->ready);
    lane_->watch->start(flight);
    try {
      const c10::StreamGuard on_own(lane_->stream);
      enqueue();
    } catch (...) {
      flight->state = Flight::State::kGivenUp;
      // It may be on the device none the less, with tensors that the caller gives up now.
      lane_->streams.current().wait(lane_->streams.record(lane_->stream));
      throw;
    }
    flight->done.record(lane_->stream);
    flight->state = Flight::State::kIssued;
    return std::make_unique<NcclWork>(lane_, flight, log_, std::move(dst), std::move(src));
  }

  void issue(const Call& call, const Communicator::Call& nccl_call) {
    const std::string what =
        std::string(to_string(static_cast<Operation>(call.description.operation))) + " #" +
        std::to_string(sequence_) + " for \"" + call.label.name + "\" on rank " +
        std::to_string(rank());
    try {
      communicator_->issue(what, job_->timeout(), nccl_call);
    } catch (const Error& error) {
      // The others may wait for this rank on their devices for ever.
      if (const std::string first = job_->first_failure(); !first.empty()) {
        lane_->watch->end("first failure: " + first);
        throw Error(error.code(), error.text() + "; first failure: " + first);
      }
      if (const std::string failure = lane_->watch->failure(); !failure.empty()) {
        throw Error(error.code(), error.text() + ": " + failure);
      }
      job_->publish_failure(error.text());
      lane_->watch->end(error.text());
      throw;
    }
  }

  std::unique_ptr<Work> gather_on_device(at::Tensor dst, at::Tensor src,
                                         const Call& call) override {
    return start(call, dst, src, [&] {
      if (const std::size_t bytes = src.nbytes(); bytes != 0) {
        issue(call, [&](const Library& library, Handle handle) {
          return library.all_gather(src.const_data_ptr(), dst.mutable_data_ptr(), bytes,
                                    nccl::kUint8, handle, stream());
        });
      }
    });
  }

  std::unique_ptr<Work> broadcast_on_device(at::Tensor buffer, int root,
                                            const Call& call) override {
    return start(call, buffer, buffer, [&] {
      if (const std::size_t bytes = buffer.nbytes(); bytes != 0) {
        void* data = buffer.mutable_data_ptr();
        issue(call, [&](const Library& library, Handle handle) {
          return library.broadcast(data, data, bytes, nccl::kUint8, root, handle, stream());
        });
      }
    });
  }

  std::unique_ptr<Work> reduce_on_device(at::Tensor dst, at::Tensor src, Finish finish,
                                         const Call& call) override {
    return start(call, dst, src, [&] {
      if (dst.numel() == 0) {
        return;
      }
      if (src.scalar_type() == at::kHalf) {
        return reduce_in_pieces(dst, src, finish, call);
      }
      const bool is_plain = !finish.accumulate && dst.scalar_type() == src.scalar_type();
      const at::Tensor sum = is_plain ? dst : lane_->scratch(0, dst.numel(), src.scalar_type());
      reduce(sum, src, call);
      finish_on_device(dst, sum, finish);
    });
  }

  /// The sum of float16 neither overflows nor vanishes in float32, which so is what travels.
  void reduce_in_pieces(const at::Tensor& dst, const at::Tensor& src, const Finish& finish,
                        const Call& call) {
    const std::int64_t slice = dst.numel();
    const std::int64_t piece = std::clamp<std::int64_t>(
        kPieceBytes / static_cast<std::int64_t>(sizeof(float)) / size(), 1, slice);
    const at::Tensor slices = src.view({size(), slice});
    for (std::int64_t begin = 0; begin < slice; begin += piece) {
      const std::int64_t numel = std::min(piece, slice - begin);
      const auto sum_bytes = numel * static_cast<std::int64_t>(sizeof(float));
      lane_->reserve(sum_bytes * (1 + size()));
      const at::Tensor sum = lane_->scratch(0, numel, at::kFloat);
      const at::Tensor wide = lane_->scratch(sum_bytes, numel * size(), at::kFloat);
      wide.view({size(), numel}).copy_(slices.narrow(1, begin, numel));
      reduce(sum, wide, call);
      finish_on_device(dst.narrow(0, begin, numel), sum, finish);
    }
  }

  void reduce(const at::Tensor& sum, const at::Tensor& src, const Call& call) {
    issue(call, [&](const Library& library, Handle handle) {
      return library.reduce_scatter(src.const_data_ptr(), sum.mutable_data_ptr(),
                                    static_cast<std::size_t>(sum.numel()),
                                    data_type(src.scalar_type()), nccl::kSum, handle, stream());
    });
  }

  nccl::StreamHandle stream() const { return handle_of(lane_->stream); }

  const std::shared_ptr<Lane> lane_;
  const std::shared_ptr<WatchedJob> job_;
  const std::shared_ptr<CollectiveLog> log_;
  std::shared_ptr<Communicator> communicator_;
  std::uint64_t generation_ = 0;  ///< that of `communicator_`
  std::uint64_t sequence_ = 0;
};

}  // namespace

Link make_nccl_link(std::shared_ptr<const Library> library, Link host, c10::Device device,
                    Milliseconds limit) {
  const DispatchGuard guard;
  const auto lane = std::make_shared<Lane>(std::move(library), host.job, device);
  auto job = std::make_shared<WatchedJob>(host.job, lane->watch);
  auto transport = std::make_shared<NcclTransport>(lane, job, std::move(host), limit);
  return {std::move(job), std::move(transport)};
}

}  // namespace fsdp::comm::detail
