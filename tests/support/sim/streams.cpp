// SPDX-License-Identifier: Apache-2.0
/// Streams, events and waits, as LibTorch asks for them.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <utility>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local int this_device = 0;
thread_local std::array<int, kDevices> this_stream = {};  ///< of each device, from 0

/// A point in a stream's work, in Mode::kLate.
class Mark {
 public:
  void reach() {
    const std::lock_guard guard(mutex_);
    is_reached_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return is_reached_; });
  }
  bool is_reached() {
    const std::lock_guard guard(mutex_);
    return is_reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

struct Event {
  Clock seen = {};
  int device = 0;
  std::shared_ptr<Mark> mark;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const int from = this_device;
    setDevice(to);
    return device(from);
  }
  c10::Device getDevice() const override { return device(this_device); }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < kDevices, "there is no ", to);
    uncheckedSetDevice(to);
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    this_device = to.index() < 0 ? this_device : to.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device of) const override {
    return stream_of(current_stream(index(of)));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return stream_of(index(of) * kStreamsPerDevice);
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    static std::array<std::atomic<int>, kDevices> next = {};
    const int turn = next[static_cast<std::size_t>(index(of))]++;
    return stream_of(index(of) * kStreamsPerDevice + 1 + turn % (kStreamsPerDevice - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    return getNewStream(of, 0);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream from = getStream(to.device());
    this_stream[static_cast<std::size_t>(to.device_index())] = static_cast<int>(to.id());
    return from;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream_number(stream) + 1));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return !is_late() || is_idle(stream_number(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream_number(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex of) const override {
    for (int stream = 0; stream < kStreamsPerDevice; ++stream) {
      synchronize(of * kStreamsPerDevice + stream);
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(data.get(), stream_number(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    auto* of = static_cast<Event*>(*event);
    if (of == nullptr) {
      *event = of = new Event;
    }
    of->seen = clock_of(stream_number(stream));
    of->device = stream.device_index();
    of->mark = nullptr;
    if (is_late()) {
      of->mark = std::make_shared<Mark>();
      enqueue(stream_number(stream), [mark = of->mark] { mark->reach(); });
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (const auto* of = static_cast<Event*>(event)) {
      join(stream_number(stream), of->seen);
      if (of->mark != nullptr) {
        enqueue(stream_number(stream), [mark = of->mark] { mark->wait(); });
      }
    }
  }
  bool queryEvent(void* event) const override {
    const auto* of = static_cast<Event*>(event);
    if (of != nullptr && of->mark != nullptr && !of->mark->is_reached()) {
      return false;
    }
    if (of != nullptr) {
      const auto held = lock();
      host_has_seen(of->device, of->seen);
    }
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const auto* of = static_cast<Event*>(event);
    if (of == nullptr) {
      return;
    }
    if (of->mark != nullptr) {
      of->mark->wait();
    }
    const auto held = lock();
    ++counts(of->device).host_waits;
    host_has_seen(of->device, of->seen);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

 private:
  static int index(c10::Device of) { return of.index() < 0 ? this_device : of.index(); }
};

}  // namespace

int current_device() { return this_device; }
void set_current_device(int device) { this_device = device; }
int current_stream(int device) {
  return device * kStreamsPerDevice + this_stream[static_cast<std::size_t>(device)];
}

bool& is_in_kernel() {
  thread_local bool is_inside = false;
  return is_inside;
}

std::string stream_name(int stream) {
  return "sim:" + std::to_string(stream / kStreamsPerDevice) + "/stream " +
         std::to_string(stream % kStreamsPerDevice);
}

void drain(int stream) {
  if (is_late()) {
    wait_until_idle(stream);
  }
}

void synchronize(int stream) {
  drain(stream);
  const auto held = lock();
  ++counts(stream / kStreamsPerDevice).host_waits;
  host_has_seen(stream / kStreamsPerDevice, clock(stream));
}

void register_streams() {
  static const Guard guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kType, &guard);
}

}  // namespace fsdp::test::sim::detail

namespace fsdp::test::sim {

int stream_number(const c10::Stream& stream) {
  return stream.device_index() * kStreamsPerDevice + static_cast<int>(stream.id());
}

c10::Stream stream_of(int number) {
  return c10::Stream(c10::Stream::UNSAFE, device(number / kStreamsPerDevice),
                     number % kStreamsPerDevice);
}

void launch(const std::string& name, int stream, const std::vector<Access>& accesses,
            std::function<void()> body) {
  {
    const auto held = detail::lock();
    detail::stamp(name, stream, accesses);
    if (detail::is_late()) {
      detail::enqueue(stream, std::move(body));  // under the lock: in the order of ticks
      return;
    }
  }
  struct InKernel {
    bool was_inside = std::exchange(detail::is_in_kernel(), true);
    ~InKernel() { detail::is_in_kernel() = was_inside; }
  } in_kernel;
  body();
}

}  // namespace fsdp::test::sim
