// SPDX-License-Identifier: Apache-2.0
/// The one way for optimizers, clipping, averages and checkpoints to reach a module's shards. What
/// trains a model needs none of it: it is for writing such a thing.
///
/// NOTE [shards refuse what mixes their elements]
/// A norm or a sum over a rank's part is no norm of the parameter, so the dispatcher's fallback
/// refuses such operators on shards and their gradients (src/engine/touch/shard_operators.hpp).
/// What this library does itself is right by construction and passes below the fallback: it
/// excludes the touch key, by OwnShards. Then nobody informs the engine of writes, so they are
/// announced before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/engine/shards.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp {

/// What an optimizer has ranks compare: see Compared.
struct HyperParameters {
  /// Of all values, in an order that is the same on all ranks. Called in each backward that hands
  /// gradients out: allocates nothing.
  std::function<std::uint64_t()> hash = {};
  /// The values by name, "lr of the group of \"h.0.weight\" in AdamW". Called where they differ.
  std::function<std::vector<std::pair<std::string, double>>()> list = {};
};

/// *Thread safety*: calls are serialised inside; collectives must be called by every rank.
/// *Example*: a plain step over whole units.
///
///     const auto access = sharded.shard_access();
///     const std::vector<fsdp::FlatShard> flats = access->flats();
///     for (int unit = 0; unit < std::ssize(flats); ++unit) {
///       access->announce_write(unit);
///     }
///     const fsdp::OwnShards own;
///     for (const fsdp::FlatShard& flat : flats) {
///       if (flat.grad.defined()) { flat.shard.add_(flat.grad, -lr); }
///     }
class ShardAccess {
 public:
  virtual ~ShardAccess() = default;
  ShardAccess(const ShardAccess&) = delete;
  ShardAccess& operator=(const ShardAccess&) = delete;

  /// One per parameter, in the module's order.
  virtual std::vector<NamedShard> named_shards() const = 0;
  /// One per unit, in the order of Report::units.
  virtual std::vector<FlatShard> flats() = 0;

  /// Says that this rank's shard of `unit` is about to be written below the dispatcher, also where
  /// it is empty. @collective with shards in shared memory that were read since backward
  /// @throws Error kInvalidArgument while gradients wait to be reduced
  virtual void announce_write(int unit) = 0;
  /// Forgets all gradients, also deferred ones.
  virtual void zero_grad() = 0;
  /// Whether gradients that set_gradient_sync() has deferred wait for a backward that reduces them.
  virtual bool has_waiting_gradients() const = 0;
  /// The first parameter, by its position in named_shards(), whose gradient is not finite for what
  /// this rank itself has added to it, before the sum over ranks; -1 for none. On the CPU only.
  virtual std::int64_t first_bad_contribution() const = 0;
  /// Whether a step whose gradients are not finite is skipped: Options::skip_non_finite.
  virtual bool skips_non_finite() const = 0;
  /// Losses are scaled from now on, so a model in float16 may train.
  virtual void set_loss_scaled() = 0;

  /// Has ranks compare these from now on, in the record that they exchange in each backward that
  /// hands gradients out: a difference throws kMismatch there, on all ranks, with its name. The
  /// same ones in the same order on all ranks. Use Compared, which ends it. Returns what
  /// stop_comparing() takes. Local.
  virtual std::uint64_t compare(HyperParameters of) = 0;
  virtual void stop_comparing(std::uint64_t id) noexcept = 0;

  /// Enters memory in ledger and promise. Use HeldMemory, which gives back what it took.
  virtual void hold_memory(memory::Kind kind, std::int64_t bytes) = 0;
  /// Strikes it out.
  virtual void release_memory(memory::Kind kind, std::int64_t bytes) noexcept = 0;

 protected:
  ShardAccess() = default;
};

/// What is held beside the engine, in the ledger and in the promise for as long as this lives.
/// Moments take the place of those that MemoryOptions::moments foretold. Move-only.
class HeldMemory {
 public:
  /// Nothing yet.
  HeldMemory(std::shared_ptr<ShardAccess> access, memory::Kind kind);
  ~HeldMemory();
  HeldMemory(HeldMemory&& other) noexcept;
  HeldMemory& operator=(HeldMemory&&) = delete;

  /// Enters `bytes` more.
  void add(std::int64_t bytes);
  /// What is entered now.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<ShardAccess> access_;
  memory::Kind kind_;
  std::int64_t bytes_ = 0;
};

/// Hyper-parameters that ranks compare for as long as this lives. Neither copied nor moved.
class Compared {
 public:
  Compared(std::shared_ptr<ShardAccess> access, HyperParameters of);
  ~Compared();
  Compared(const Compared&) = delete;
  Compared& operator=(const Compared&) = delete;

 private:
  std::shared_ptr<ShardAccess> access_;
  std::uint64_t id_;
};

/// For as long as it lives, operators on this thread take shards as plain tensors, and autograd
/// records nothing. See NOTE [shards refuse what mixes their elements].
class OwnShards {
 public:
  OwnShards();

 private:
  c10::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_touch_;
};

}  // namespace fsdp
