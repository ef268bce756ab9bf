// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/presence.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "fsdp/base/error.hpp"

namespace fsdp::engine {

Presence::Presence(comm::Job& world, const std::vector<Unit>& units) : world_(world) {
  std::size_t parameters = 0;
  for (const Unit& unit : units) {
    first_bit_.push_back(parameters);
    parameters += unit.parameters.size();
  }
  own_.resize(1 + (parameters + kBits - 1) / kBits);
  all_.resize(own_.size() * static_cast<std::size_t>(world.size()));
}

void Presence::forget_all() { std::ranges::fill(own_, 0); }

void Presence::agree(double divisor) {
  own_[0] = std::bit_cast<std::uint64_t>(divisor);
  world_.exchange(std::as_bytes(std::span(own_)), std::as_writable_bytes(std::span(all_)),
                  {.name = "which gradients there are"});
  const auto ranks = static_cast<std::size_t>(world_.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto theirs = std::bit_cast<double>(all_[rank * own_.size()]);
    const auto first = std::bit_cast<double>(all_[0]);
    FSDP_CHECK(theirs == first, ErrorCode::kMismatch, "[backward] gradients are divided by ", first,
               " on rank 0 and by ", theirs, " on rank ", rank,
               ": pass the same to set_gradient_divisor() on all ranks");
    for (std::size_t word = 1; word < own_.size(); ++word) {
      own_[word] |= all_[rank * own_.size() + word];
    }
  }
}

}  // namespace fsdp::engine
