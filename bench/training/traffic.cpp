// SPDX-License-Identifier: Apache-2.0
#include "training/traffic.hpp"

#include <torch/torch.h>

#include <algorithm>

namespace bench {
namespace {

constexpr std::size_t kInFlight = 2;

}  // namespace

void Traffic::observe(const fsdp::trace::Event& event) {
  const bool is_gather = event.kind == fsdp::trace::EventKind::kGatherStart;
  if (is_recording && (is_gather || event.kind == fsdp::trace::EventKind::kReduceStart)) {
    order_.push_back({.is_gather = is_gather, .unit = event.unit});
  }
}

void Traffic::prepare(const fsdp::Sharded& sharded) {
  transport_ = &sharded.world().transport();
  for (const fsdp::UnitInfo& unit : sharded.report().units) {
    padded_numel_.push_back(unit.padded_numel);
  }
  const std::int64_t largest = *std::ranges::max_element(padded_numel_);
  for (std::size_t i = 0; i < kInFlight; ++i) {
    whole_.push_back(torch::ones({largest}));
    slice_.push_back(torch::ones({largest / transport_->size()}));
  }
  transport_->reserve_staging(largest * 4, kInFlight);
}

std::unique_ptr<fsdp::comm::Work> Traffic::start(const Collective& collective, std::size_t buffer) {
  const std::int64_t numel = padded_numel_[static_cast<std::size_t>(collective.unit)];
  const std::int64_t part = numel / transport_->size();
  const at::Tensor whole = whole_[buffer].narrow(0, 0, numel);
  if (collective.is_gather) {
    const at::Tensor own = whole.narrow(0, part * transport_->rank(), part);
    return transport_->all_gather(whole, own, {.unit = collective.unit, .name = "replay"});
  }
  return transport_->reduce_scatter(slice_[buffer].narrow(0, 0, part), whole,
                                    {.divisor = 1.0 * transport_->size()},
                                    {.unit = collective.unit, .name = "replay"});
}

void Traffic::replay() {
  std::deque<std::unique_ptr<fsdp::comm::Work>> under_way;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (under_way.size() == kInFlight) {
      under_way.front()->wait();
      under_way.pop_front();
    }
    under_way.push_back(start(order_[i], i % kInFlight));
  }
  for (const auto& work : under_way) {
    work->wait();
  }
}

}  // namespace bench
