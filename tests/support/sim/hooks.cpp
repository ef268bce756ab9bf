// SPDX-License-Identifier: Apache-2.0
/// What LibTorch asks of a device besides streams and operators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    const c10::DeviceIndex from = getCurrentDevice();
    set_current_device(to);
    return from;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return to < 0 ? getCurrentDevice() : exchangeDevice(to);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned_address(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(is_device_address(data), "the address is not of a simulated device's memory");
    return device(device_of_address(data));
  }
  // Kernels are the CPU's, and so are random numbers.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::DataPtr fresh = device_allocator()->allocate(bytes);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      void* dst = fresh.get();
      const void* src = storage.data();
      launch("resize storage", current_stream(device_of_address(src)),
             {{src, kept, false}, {dst, kept, true}},
             [=] { std::memcpy(kernel_view(dst), kernel_view(src), kept); });
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

void register_hooks() {
  static Hooks hooks;
  c10::register_privateuse1_backend("sim");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, device_allocator());
}

}  // namespace fsdp::test::sim::detail
