// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_group_of_one.hpp"

#include <utility>

#include "comm/device/device_finish.hpp"
#include "comm/device/device_streams.hpp"
#include "comm/device/device_transport.hpp"
#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// What the stream that was current at the start has been given.
class OwnWork : public Work {
 public:
  explicit OwnWork(const DeviceStreams& streams)
      : streams_(streams), begun_on_(streams.current()), done_(streams.record(begun_on_)) {}

  void wait() override {
    FSDP_ASSERT(!waited_, "a collective was waited for twice");
    waited_ = true;
    if (const c10::Stream now = streams_.current(); now != begun_on_) {
      now.wait(done_);
    }
  }

 private:
  DeviceStreams streams_;
  c10::Stream begun_on_;
  c10::Event done_;
  bool waited_ = false;
};

Traits traits_over(const Traits& host) {
  Traits traits = host;
  traits.waits = Waits::kStream;
  traits.sums = Sums::kRankOrder;
  traits.shares_memory = false;
  return traits;
}

class DeviceGroupOfOne final : public DeviceTransport {
 public:
  DeviceGroupOfOne(Link host, c10::Device device)
      : DeviceTransport(traits_over(host.transport->traits()), host, device), streams_(device) {}

  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  std::shared_ptr<Transport> split(const std::shared_ptr<Job>& part) override {
    return make_device_group_of_one({part, host().transport->split(part)}, device());
  }

 private:
  std::unique_ptr<Work> done() const { return std::make_unique<OwnWork>(streams_); }

  std::unique_ptr<Work> gather_on_device(at::Tensor dst, at::Tensor src, const Call&) override {
    if (dst.const_data_ptr() != src.const_data_ptr()) {
      dst.copy_(src);
    }
    return done();
  }

  std::unique_ptr<Work> reduce_on_device(at::Tensor dst, at::Tensor src, Finish finish,
                                         const Call&) override {
    const bool is_plain = !finish.accumulate && dst.scalar_type() == src.scalar_type();
    at::Tensor sum = dst;
    if (!is_plain) {
      sum = src.clone();
    } else if (dst.const_data_ptr() != src.const_data_ptr()) {
      sum.copy_(src);
    }
    finish_on_device(dst, std::move(sum), finish);
    return done();
  }

  std::unique_ptr<Work> broadcast_on_device(at::Tensor, int, const Call&) override {
    return done();
  }

  const DeviceStreams streams_;
};

}  // namespace

std::shared_ptr<Transport> make_device_group_of_one(Link host, c10::Device device) {
  return std::make_shared<DeviceGroupOfOne>(std::move(host), device);
}

}  // namespace fsdp::comm::detail
