// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/mean.hpp"

#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp {

PendingMean::PendingMean(World world, double value, double weight, std::string name)
    : world_(std::move(world)),
      name_(std::move(name)),
      own_(std::make_unique<Counted>(Counted{value, weight})),
      all_(static_cast<std::size_t>(world_.size())) {
  work_ = world_.job().start_exchange(std::as_bytes(std::span(own_.get(), 1)),
                                      std::as_writable_bytes(std::span(all_)), {.name = name_});
}

PendingMean::PendingMean(PendingMean&&) noexcept = default;

PendingMean& PendingMean::operator=(PendingMean other) noexcept {
  std::swap(world_, other.world_);
  std::swap(name_, other.name_);
  std::swap(own_, other.own_);
  std::swap(all_, other.all_);
  std::swap(work_, other.work_);
  std::swap(result_, other.result_);
  return *this;  // `other` ends what was under way here
}

PendingMean::~PendingMean() {
  if (work_ != nullptr && std::uncaught_exceptions() == 0) {
    try {
      // Without a wait the transport would take it that this rank gave up.
      work_->wait();
    } catch (...) {
      // The group has failed, which the next collective says.
    }
  }
}

const PendingMean::Result& PendingMean::result() {
  if (!result_) {
    FSDP_CHECK(work_ != nullptr, ErrorCode::kInvalidArgument, "[", name_,
               "] this mean was moved away, or its first get() has failed");
    std::exchange(work_, nullptr)->wait();
    Result sum{0, 0};
    for (int rank = 0; rank < world_.size(); ++rank) {
      const auto [value, weight] = all_[static_cast<std::size_t>(rank)];
      FSDP_CHECK(weight >= 0 && std::isfinite(weight), ErrorCode::kInvalidArgument, "[", name_,
                 "] rank ", rank, " counts ", weight, ", must be finite and not below 0");
      sum.mean += weight > 0 ? value * weight : 0;
      sum.weight += weight;
    }
    FSDP_CHECK(sum.weight > 0, ErrorCode::kInvalidArgument, "[", name_, "] all ", world_.size(),
               " ranks together count 0: there is nothing to take the mean of");
    result_ = {sum.mean / sum.weight, sum.weight};
  }
  return *result_;
}

double PendingMean::get() { return result().mean; }
double PendingMean::total_weight() { return result().weight; }

PendingMean mean_over_ranks(const World& world, double value, double weight, std::string name) {
  return PendingMean(world, value, weight, std::move(name));
}

double count_over_ranks(const World& world, double count) {
  return mean_over_ranks(world, /*value=*/0, count, "count_over_ranks").total_weight();
}

}  // namespace fsdp
