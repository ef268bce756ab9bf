// SPDX-License-Identifier: Apache-2.0
#include "comm/host_transport.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

at::Tensor view(const std::byte* bytes, std::size_t count) {
  return at::from_blob(const_cast<std::byte*>(bytes), {static_cast<std::int64_t>(count)},
                       at::TensorOptions(at::kByte));
}

}  // namespace

std::unique_ptr<Work> HostTransport::start_exchange(std::span<const std::byte> own,
                                                    std::span<std::byte> all, const Label& label) {
  const DispatchGuard guard;
  return all_gather(view(all.data(), all.size()), view(own.data(), own.size()), label);
}

void HostTransport::barrier(const Label& label) { publish(label)->wait(); }

void HostTransport::broadcast_bytes(std::span<std::byte> bytes, int root, const Label& label) {
  const DispatchGuard guard;
  broadcast(view(bytes.data(), bytes.size()), root, label)->wait();
}

std::optional<std::string> HostTransport::refuses(c10::Device device) const {
  return refuse_all_but_cpu(traits().name, device);
}

at::Tensor HostTransport::shared_memory(std::int64_t, const Label&) { return {}; }

at::Tensor HostTransport::buffer(std::int64_t bytes) {
  const DispatchGuard guard;
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

std::shared_ptr<Transport> HostTransport::split(const std::shared_ptr<Job>& part) {
  auto both = std::dynamic_pointer_cast<HostTransport>(part);
  FSDP_ASSERT(both, "the part of another transport");
  return both;
}

}  // namespace fsdp::comm::detail
