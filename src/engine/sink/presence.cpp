// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/presence.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>

#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

constexpr std::size_t kBits = 64;

at::Tensor tensor_of(std::vector<std::int64_t>& words) {
  return at::from_blob(words.data(), {std::ssize(words)}, at::TensorOptions(at::kLong));
}

/// Calls `visit(parameter, word, mask)` for every parameter, in one order.
template <class Visit>
void each_bit(std::vector<Unit>& units, Visit visit) {
  std::size_t bit = 0;
  for (Unit& unit : units) {
    for (Parameter& parameter : unit.parameters) {
      visit(parameter, 1 + bit / kBits, std::uint64_t{1} << (bit % kBits));
      ++bit;
    }
  }
}

}  // namespace

Presence::Presence(comm::Communicator& world, const std::vector<Unit>& units) : world_(world) {
  std::size_t parameters = 0;
  for (const Unit& unit : units) {
    parameters += unit.parameters.size();
  }
  own_.resize(1 + (parameters + kBits - 1) / kBits);
  all_.resize(own_.size() * static_cast<std::size_t>(world.size()));
}

void Presence::agree(std::vector<Unit>& units, double divisor) {
  std::ranges::fill(own_, 0);
  own_[0] = std::bit_cast<std::int64_t>(divisor);
  each_bit(units, [&](const Parameter& parameter, std::size_t word, std::uint64_t mask) {
    if (parameter.is_present) {
      own_[word] = static_cast<std::int64_t>(static_cast<std::uint64_t>(own_[word]) | mask);
    }
  });
  world_.all_gather(tensor_of(all_), tensor_of(own_), {.name = "which gradients there are"})
      ->wait();
  const auto ranks = static_cast<std::size_t>(world_.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto theirs = std::bit_cast<double>(all_[rank * own_.size()]);
    const auto first = std::bit_cast<double>(all_[0]);
    FSDP_CHECK(theirs == first, ErrorCode::kMismatch, "[backward] gradients are divided by ", first,
               " on rank 0 and by ", theirs, " on rank ", rank,
               ": pass the same to set_gradient_divisor() on all ranks");
  }
  each_bit(units, [&](Parameter& parameter, std::size_t word, std::uint64_t mask) {
    for (std::size_t rank = 0; rank < ranks && !parameter.is_present; ++rank) {
      parameter.is_present =
          (static_cast<std::uint64_t>(all_[rank * own_.size() + word]) & mask) != 0;
    }
  });
}

}  // namespace fsdp::engine
