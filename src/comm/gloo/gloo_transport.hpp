// SPDX-License-Identifier: Apache-2.0
/// The transport of direct exchange; see NOTE [direct exchange] in gloo.cpp. What adds a level
/// below it (two_level.hpp) derives from it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/gloo/gloo.hpp"
#include "comm/gloo/gloo_exchange.hpp"
#include "comm/host_transport.hpp"
#include "comm/seat.hpp"
#include "comm/staging_pool.hpp"

namespace fsdp::comm::detail {

/// The whole job, or a group of it: then `job_` is the whole, which has the connections.
class GlooTransport : public HostTransport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, const GlooOptions& options,
                const Traits& traits = gloo_traits());
  GlooTransport(std::shared_ptr<GlooTransport> job, SeatPointer seat,
                const Traits& traits = gloo_traits());
  ~GlooTransport() override;

  int rank() const override { return seat_->index; }
  int size() const override { return seat_->size(); }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override;
  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override;
  std::unique_ptr<Work> publish(const Label& label) override;
  std::int64_t reserve_staging(std::int64_t max_src_bytes, int in_flight) override;
  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;
  void announce(const Announcement& announcement) override;
  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const override { return job().options_.timeout; }
  void recover() override;
  std::uint64_t generation() const override { return job().generation_; }
  void publish_failure(const std::string& text) noexcept override;
  std::string first_failure() noexcept override { return exchange().first_failure(); }

 protected:
  const GlooTransport& job() const { return job_ ? *job_ : *this; }
  GlooTransport& job() { return job_ ? *job_ : *this; }
  std::shared_ptr<GlooTransport> shared_job();
  const std::shared_ptr<GlooExchange>& shared_exchange() { return job().exchange_; }
  GlooExchange& exchange() { return *job().exchange_; }
  const Seat& seat() const { return *seat_; }
  const std::shared_ptr<StagingPool>& staging() const { return staging_; }

  /// The first half of split(): the place in the group to be made. @collective
  SeatPointer take_seat(const std::vector<int>& ranks, const std::string& label);

  /// Starts a collective and lets `post` add its payloads; a connection that is already closed
  /// becomes an Error here.
  std::unique_ptr<Flight> start(const Description& description,
                                const std::function<void(Flight&)>& post);

 private:
  /// Makes the connections and the board of a generation.
  void connect(std::uint64_t generation);

  const std::shared_ptr<GlooTransport> job_;
  const SeatPointer seat_;
  const std::shared_ptr<StagingPool> staging_ = std::make_shared<StagingPool>();
  std::uint64_t sequence_ = 0;
  std::uint64_t sequence_generation_ = 0;  ///< the generation that `sequence_` counts in

  // Of the whole job.
  c10::intrusive_ptr<c10d::Store> store_;
  GlooOptions options_;
  std::shared_ptr<GlooExchange> exchange_;
  GroupNumbers numbers_;
  std::uint64_t generation_ = 0;
};

}  // namespace fsdp::comm::detail
