// SPDX-License-Identifier: Apache-2.0
#include "comm/two_level/host_group.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// Runs `act` of something that began in `generation`; what ends the group is told to the whole
/// job. A mismatch leaves the ranks in step, and what is void concerns nobody.
template <class Act>
auto telling(Job& job, std::uint64_t generation, Act act) {
  try {
    return act();
  } catch (const Error& error) {
    if (generation == job.generation() &&
        (error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed)) {
      job.publish_failure(error.text());
    }
    throw;
  }
}

class HostWork : public Work {
 public:
  HostWork(std::shared_ptr<Job> job, std::unique_ptr<Work> work)
      : job_(std::move(job)), generation_(job_->generation()), work_(std::move(work)) {}
  void wait() override {
    telling(*job_, generation_, [&] { work_->wait(); });
  }

 private:
  std::shared_ptr<Job> job_;
  std::uint64_t generation_;
  std::unique_ptr<Work> work_;
};

class HostGroup final : public HostTransport {
 public:
  HostGroup(std::shared_ptr<Job> job, std::shared_ptr<HostTransport> host)
      : HostTransport(host->traits()), job_(std::move(job)), host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    return start([&] { return host_->all_gather(std::move(dst), std::move(src), label); });
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override {
    return start(
        [&] { return host_->reduce_scatter(std::move(dst), std::move(src), finish, label); });
  }
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    return start([&] { return host_->broadcast(std::move(buffer), root, label); });
  }
  std::unique_ptr<Work> publish(const Label& label) override {
    return start([&] { return host_->publish(label); });
  }

  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override {
    return host_->reserve_staging(max_src_bytes, in_flight);
  }
  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override {
    return telling(*job_, generation(), [&] { return host_->shared_memory(bytes, label); });
  }
  at::Tensor buffer(std::int64_t bytes) override { return host_->buffer(bytes); }

  void announce(const Announcement& announcement) override { host_->announce(announcement); }
  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override {
    auto part = telling(*job_, generation(), [&] { return host_->make_part(ranks, label); });
    return std::make_shared<HostGroup>(job_, std::move(part));
  }

  void set_timeout(std::chrono::milliseconds timeout) override { job_->set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return job_->timeout(); }
  void recover() override { job_->recover(); }
  std::uint64_t generation() const override { return job_->generation(); }
  void publish_failure(const std::string& text) noexcept override { job_->publish_failure(text); }
  std::string first_failure() noexcept override { return job_->first_failure(); }

 private:
  template <class Start>
  std::unique_ptr<Work> start(Start start_on_host) {
    return std::make_unique<HostWork>(job_, telling(*job_, generation(), start_on_host));
  }

  std::shared_ptr<Job> job_;
  std::shared_ptr<HostTransport> host_;
};

}  // namespace

std::shared_ptr<HostTransport> make_host_group(std::shared_ptr<Job> job,
                                               std::shared_ptr<HostTransport> host) {
  return std::make_shared<HostGroup>(std::move(job), std::move(host));
}

}  // namespace fsdp::comm::detail
