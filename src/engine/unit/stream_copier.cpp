// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/stream_copier.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <utility>

namespace fsdp::engine {

namespace {

class StreamCopier : public Copier {
 public:
  explicit StreamCopier(c10::Device device)
      : device_(device),
        guard_(device.type()),
        stream_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/false)) {}

  std::uint64_t start(at::Tensor dst, at::Tensor src) override {
    c10::Event before(device_.type());
    before.record(guard_.getStream(device_));
    stream_.wait(before);
    const c10::StreamGuard on_own_stream(stream_);
    dst.copy_(src, /*non_blocking=*/true);
    c10::Event after(device_.type());
    after.record(stream_);
    under_way_.emplace(++ticket_, std::move(after));
    return ticket_;
  }

  void wait(std::uint64_t ticket) override { under_way_.extract(ticket).mapped().synchronize(); }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  std::map<std::uint64_t, c10::Event> under_way_;
  std::uint64_t ticket_ = 0;
};

}  // namespace

std::shared_ptr<Copier> make_stream_copier(c10::Device device) {
  return std::make_shared<StreamCopier>(device);
}

}  // namespace fsdp::engine
