// SPDX-License-Identifier: Apache-2.0
/// What the transports of the host share: their one exchange serves both faces.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

/// A line that carries control and data: bytes of the host are tensors of the CPU. A transport that
/// moves tensors of a device alone derives from Transport instead and takes the Link of one of
/// these for its control.
class HostTransport : public Job,
                      public Transport,
                      public std::enable_shared_from_this<HostTransport> {
 public:
  explicit HostTransport(Traits traits) : traits_(std::move(traits)) {}

  int rank() const override = 0;
  int size() const override = 0;
  const Traits& traits() const final { return traits_; }

  std::unique_ptr<Work> start_exchange(std::span<const std::byte> own, std::span<std::byte> all,
                                       const Label& label) final;
  void barrier(const Label& label) final;
  void broadcast_bytes(std::span<std::byte> bytes, int root, const Label& label) final;

  std::optional<std::string> refuses(c10::Device device) const override;
  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;
  at::Tensor buffer(std::int64_t bytes) override;

  std::shared_ptr<Job> split(const std::vector<int>& ranks, const std::string& label) final {
    return make_part(ranks, label);
  }
  std::shared_ptr<Transport> split(const std::shared_ptr<Job>& part) final;

  /// What split() promises. @collective @blocks @throws as split()
  virtual std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                                   const std::string& label) = 0;

  Link link() { return {shared_from_this(), shared_from_this()}; }

 private:
  const Traits traits_;
};

}  // namespace fsdp::comm::detail
