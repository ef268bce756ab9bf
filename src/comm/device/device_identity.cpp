// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_identity.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "comm/join/host.hpp"

namespace fsdp::comm::detail {
namespace {

/// By the driver, as LibTorch tells its UUID only to who has the maker's headers; empty when the
/// driver does not say.
std::string uuid_of_cuda(int index) {
  using Init = int (*)(unsigned);
  using GetDevice = int (*)(int*, int);
  using GetUuid = int (*)(std::array<unsigned char, 16>*, int);
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return "";
  }
  const auto init = reinterpret_cast<Init>(::dlsym(driver, "cuInit"));
  const auto get_device = reinterpret_cast<GetDevice>(::dlsym(driver, "cuDeviceGet"));
  void* newest = ::dlsym(driver, "cuDeviceGetUuid_v2");  // knows parts of a device
  const auto get_uuid =
      reinterpret_cast<GetUuid>(newest != nullptr ? newest : ::dlsym(driver, "cuDeviceGetUuid"));
  int device = 0;
  std::array<unsigned char, 16> uuid{};
  if (init == nullptr || get_device == nullptr || get_uuid == nullptr || init(0) != 0 ||
      get_device(&device, index) != 0 || get_uuid(&uuid, device) != 0) {
    return "";
  }
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    std::array<char, 4> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", uuid[i]);
    text += (i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(hex.data());
  }
  return text;
}

}  // namespace

std::string device_identity(c10::Device device) {
  if (device.is_cuda()) {
    if (std::string uuid = uuid_of_cuda(device.index()); !uuid.empty()) {
      return uuid;
    }
  }
  std::string place = host_identity();
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); device.is_cuda() && visible) {
    place += ", CUDA_VISIBLE_DEVICES " + std::string(visible);
  }
  if (device.is_privateuseone()) {
    place += ", process " + std::to_string(::getpid());
  }
  return device.str() + " of " + place;
}

std::string describe_shared_device(int rank, int other, const std::string& identity) {
  return "ranks " + std::to_string(rank) + " and " + std::to_string(other) + " are both on " +
         identity +
         ": give each a device of its own (by LOCAL_RANK, or one visible to each), or let them "
         "share "
         "it over transport staged";
}

}  // namespace fsdp::comm::detail
