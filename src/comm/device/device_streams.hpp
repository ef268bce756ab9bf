// SPDX-License-Identifier: Apache-2.0
/// The streams of one device in LibTorch's own words, so that no maker's headers are needed.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp::comm::detail {

/// *Thread safety*: any thread; current() is that of the calling thread.
class DeviceStreams {
 public:
  explicit DeviceStreams(c10::Device device) : device_(device), guard_(device.type()) {}

  c10::Device device() const { return device_; }
  /// The stream that the caller's operators go to.
  c10::Stream current() const { return guard_.getStream(device_); }
  /// One of the device's pool.
  c10::Stream take() const { return guard_.getStreamFromGlobalPool(device_, false); }
  /// What `stream` has been given so far.
  c10::Event record(const c10::Stream& stream) const {
    c10::Event event(device_.type());
    event.record(stream);
    return event;
  }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
};

}  // namespace fsdp::comm::detail
