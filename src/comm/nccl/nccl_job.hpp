// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/nccl/nccl_watch.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail::nccl {

/// The host's control of a group whose tensors are on devices: before it recovers, what is under
/// way on the device ends. Else it is the host's.
class WatchedJob final : public Job {
 public:
  WatchedJob(std::shared_ptr<Job> host, std::shared_ptr<Watch> watch)
      : host_(std::move(host)), watch_(std::move(watch)) {}

  const std::shared_ptr<Job>& host() const { return host_; }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::unique_ptr<Work> start_exchange(std::span<const std::byte> own, std::span<std::byte> all,
                                       const Label& label) override {
    return host_->start_exchange(own, all, label);
  }
  void barrier(const Label& label) override { host_->barrier(label); }
  void broadcast_bytes(std::span<std::byte> bytes, int root, const Label& label) override {
    host_->broadcast_bytes(bytes, root, label);
  }
  void announce(const Announcement& announcement) override { host_->announce(announcement); }
  std::shared_ptr<Job> split(const std::vector<int>& ranks, const std::string& label) override {
    return std::make_shared<WatchedJob>(host_->split(ranks, label), watch_);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { host_->set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return host_->timeout(); }
  void recover() override { watch_->recover(); }
  std::uint64_t generation() const override { return host_->generation(); }
  void publish_failure(const std::string& text) noexcept override { host_->publish_failure(text); }
  std::string first_failure() noexcept override { return host_->first_failure(); }

 private:
  const std::shared_ptr<Job> host_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace fsdp::comm::detail::nccl
