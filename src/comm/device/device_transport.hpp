// SPDX-License-Identifier: Apache-2.0
/// What the transports of a device share. Each is the data face of a group whose control face, and
/// whose way for tensors on the CPU, are those of a transport of the host.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/fingerprint.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// *Invariants*: both tensors of a collective are on the CPU, and then it is the host transport's,
/// or both on device(), which has an index.
class DeviceTransport : public Transport {
 public:
  DeviceTransport(Traits traits, Link host, c10::Device device);

  int rank() const final { return host_.rank(); }
  int size() const final { return host_.size(); }
  const Traits& traits() const final { return traits_; }
  std::optional<std::string> refuses(c10::Device device) const final;

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) final;
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) final;
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) final;
  std::unique_ptr<Work> publish(const Label& label) final;
  /// Both of the host: a device has no memory that ranks share.
  at::Tensor shared_memory(std::int64_t bytes, const Label& label) final;
  at::Tensor buffer(std::int64_t bytes) final;

  c10::Device device() const { return device_; }
  const Link& host() const { return host_; }

 protected:
  /// What a sub-class is asked for: tensors on device(), checked, of one dimension and unknown to
  /// autograd.
  struct Call {
    Description description;
    Label label;
  };
  virtual std::unique_ptr<Work> gather_on_device(at::Tensor dst, at::Tensor src,
                                                 const Call& call) = 0;
  virtual std::unique_ptr<Work> reduce_on_device(at::Tensor dst, at::Tensor src, Finish finish,
                                                 const Call& call) = 0;
  virtual std::unique_ptr<Work> broadcast_on_device(at::Tensor buffer, int root,
                                                    const Call& call) = 0;

 private:
  const Traits traits_;
  const Link host_;
  const c10::Device device_;
};

}  // namespace fsdp::comm::detail
