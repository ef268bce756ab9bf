// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/presence.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "base/hash.hpp"
#include "comm/named_values.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

Presence::Presence(comm::Job& world, const std::vector<Unit>& units) : world_(world) {
  std::size_t parameters = 0;
  for (const Unit& unit : units) {
    first_bit_.push_back(parameters);
    parameters += unit.parameters.size();
  }
  own_.resize(kHead + (parameters + kBits - 1) / kBits);
  all_.resize(own_.size() * static_cast<std::size_t>(world.size()));
}

void Presence::forget_all() { std::ranges::fill(own_, 0); }

std::uint64_t Presence::compare(HyperParameters of) {
  compared_.emplace(++last_compared_, std::move(of));
  return last_compared_;
}

std::uint64_t Presence::hash_of_hyper_parameters() const {
  base::Fnv1a hash;
  for (const auto& [id, of] : compared_) {
    hash.add_value(of.hash());
  }
  return hash.value();
}

void Presence::refuse_hyper_parameters() {
  std::vector<comm::NamedValue> values;
  for (const auto& [id, of] : compared_) {
    for (auto& [name, value] : of.list()) {
      values.push_back({std::move(name), value});
    }
  }
  const std::string difference = comm::first_difference(world_, values);
  fail(ErrorCode::kMismatch, "[backward] ",
       difference.empty() ? std::string("ranks have other optimizers") : difference,
       ": each rank would train its part of a tensor in another way. Set it from what all ranks "
       "know: a scheduler that looks at the loss needs its mean over ranks, mean_over_ranks()");
}

void Presence::agree(double divisor) {
  own_[kHyperParameters] = hash_of_hyper_parameters();
  own_[kDivisor] = std::bit_cast<std::uint64_t>(divisor);
  world_.exchange(std::as_bytes(std::span(own_)), std::as_writable_bytes(std::span(all_)),
                  {.name = "which gradients there are"});
  const auto ranks = static_cast<std::size_t>(world_.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto theirs = std::bit_cast<double>(all_[rank * own_.size()]);
    const auto first = std::bit_cast<double>(all_[0]);
    FSDP_CHECK(theirs == first, ErrorCode::kMismatch, "[backward] gradients are divided by ", first,
               " on rank 0 and by ", theirs, " on rank ", rank,
               ": pass the same to set_gradient_divisor() on all ranks");
    if (all_[rank * own_.size() + kHyperParameters] != all_[kHyperParameters]) {
      refuse_hyper_parameters();
    }
    for (std::size_t word = kHead; word < own_.size(); ++word) {
      own_[word] |= all_[rank * own_.size() + word];
    }
  }
}

}  // namespace fsdp::engine
