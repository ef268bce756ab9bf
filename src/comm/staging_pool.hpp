// SPDX-License-Identifier: Apache-2.0
/// Memory that collectives of one group pass through, kept for the next, so that steady state
/// allocates nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace fsdp::comm::detail {

/// *Thread safety*: one thread at a time.
class StagingPool {
 public:
  enum class Memory {
    kPlain,
    kPinned,  ///< what the accelerator copies from and to by itself
  };

  explicit StagingPool(Memory memory = Memory::kPlain) : memory_(memory) {}

  /// Makes sure of `in_flight` idle buffers of at least `bytes`. Returns the bytes of all.
  std::int64_t reserve(std::int64_t bytes, int in_flight);
  /// Makes sure again of all that was ever reserved: works of a failed group keep theirs.
  void restore();

  /// Of the buffers that nobody has taken.
  std::int64_t idle_bytes() const;

  at::Tensor take(std::int64_t bytes);
  void give_back(at::Tensor staging) { idle_.push_back(std::move(staging)); }

 private:
  at::Tensor allocate(std::int64_t bytes) const;

  Memory memory_;
  std::vector<at::Tensor> idle_;
  std::vector<std::pair<std::int64_t, int>> reservations_;
};

}  // namespace fsdp::comm::detail
