// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_transport.hpp"

#include <utility>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// Whether both are the host's. One here and one there is nobody's collective.
bool are_on_host(const char* operation, const std::string& transport, const Label& label,
                 const at::Tensor& dst, const at::Tensor& src) {
  if (!dst.defined() || !src.defined()) {
    return true;  // the host transport says what is wrong
  }
  FSDP_CHECK(dst.device() == src.device(), ErrorCode::kUnsupported, operation, " for \"",
             label.name, "\": dst is on ", dst.device().str(), " but src is on ",
             src.device().str(), ", and ", transport, " takes tensors of one device");
  return dst.is_cpu();
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({-1}); }

}  // namespace

DeviceTransport::DeviceTransport(Traits traits, Link host, c10::Device device)
    : traits_(std::move(traits)), host_(std::move(host)), device_(device) {
  FSDP_ASSERT(device.has_index() && !device.is_cpu(), "a device transport for ", device.str());
}

std::optional<std::string> DeviceTransport::refuses(c10::Device device) const {
  if (device.is_cpu() || device == device_) {
    return std::nullopt;
  }
  const std::string takes =
      traits_.name + " takes tensors of the CPU and of this rank's device, " + device_.str() + ": ";
  if (device.is_meta()) {
    return takes + "give the tensor memory first";
  }
  return takes + (device.type() == device_.type()
                      ? "a rank computes on one device. Is the module, or a batch, on another?"
                      : "copy the tensor there");
}

std::unique_ptr<Work> DeviceTransport::all_gather(at::Tensor dst, at::Tensor src,
                                                  const Label& label) {
  if (are_on_host("all-gather", traits_.name, label, dst, src)) {
    return host_.transport->all_gather(std::move(dst), std::move(src), label);
  }
  const DispatchGuard guard;
  const Call call{check_all_gather(*this, dst, src, label), label};
  return gather_on_device(flat(dst), flat(src), call);
}

std::unique_ptr<Work> DeviceTransport::reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                                      const Label& label) {
  if (are_on_host("reduce-scatter", traits_.name, label, dst, src)) {
    return host_.transport->reduce_scatter(std::move(dst), std::move(src), finish, label);
  }
  const DispatchGuard guard;
  const Call call{check_reduce_scatter(*this, dst, src, finish, label), label};
  return reduce_on_device(flat(dst), flat(src), finish, call);
}

std::unique_ptr<Work> DeviceTransport::broadcast(at::Tensor buffer, int root, const Label& label) {
  if (are_on_host("broadcast", traits_.name, label, buffer, buffer)) {
    return host_.transport->broadcast(std::move(buffer), root, label);
  }
  const DispatchGuard guard;
  const Call call{check_broadcast(*this, buffer, root, label), label};
  return broadcast_on_device(flat(buffer), root, call);
}

std::unique_ptr<Work> DeviceTransport::publish(const Label& label) {
  return host_.transport->publish(label);
}

at::Tensor DeviceTransport::shared_memory(std::int64_t bytes, const Label& label) {
  return host_.transport->shared_memory(bytes, label);
}

at::Tensor DeviceTransport::buffer(std::int64_t bytes) { return host_.transport->buffer(bytes); }

}  // namespace fsdp::comm::detail
