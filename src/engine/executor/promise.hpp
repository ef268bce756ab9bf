// SPDX-License-Identifier: Apache-2.0
/// What a rank will hold at its peak, known before the first step.
#pragma once

#include <cstdint>

#include "engine/unit/module_layout.hpp"
#include "fsdp/engine/options.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// The engine's own bytes, and what optimizers hold beside it.
///
/// *Thread safety*: under the engine's lock.
class Promise {
 public:
  Promise(const ModuleLayout& layout, const Options& options, memory::Ledger& ledger)
      : layout_(layout), options_(options), ledger_(ledger) {}

  /// The engine has all it needs: what is entered now, and `moment_bytes` that an optimizer is
  /// expected to add.
  void renew(std::int64_t moment_bytes);
  /// Of an optimizer, see HeldMemory.
  void hold(memory::Kind kind, std::int64_t bytes);
  void release(memory::Kind kind, std::int64_t bytes);

  memory::Bytes bytes() const;
  /// Prints it on rank 0, the first time.
  void print(int rank, int ranks, double divisor);

 private:
  memory::Kind kind_of_held(memory::Kind kind) const;

  const ModuleLayout& layout_;
  const Options& options_;
  memory::Ledger& ledger_;
  memory::Bytes own_;
  memory::Bytes held_, most_held_;  ///< by optimizers
  bool has_optimizer_ = false;
  bool has_printed_ = false;
};

}  // namespace fsdp::engine
