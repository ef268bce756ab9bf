// SPDX-License-Identifier: Apache-2.0
/// How a unit's full weights come to be. The schedule decides when; a store knows how. Units that
/// are whole at rest (Placement::is_resident) need none and are left alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/unit/bundle.hpp"
#include "engine/unit/slice.hpp"
#include "engine/unit/unit.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// *Invariants*: start and wait come in pairs, in the same order on all ranks of the unit's group;
/// between wait and release the unit's bytes lie at address(). *Thread safety*: under the engine's
/// lock. Units and bundles outlive a store.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// Memory for the slices of all units, zero; undefined where a slice may have memory of its own.
  /// Once, before all else; the store outlives it. @collective all ranks
  virtual std::vector<at::Tensor> make_slices() = 0;
  /// Begins to make unit `index` whole in `slot`, from slices that are current.
  /// @collective the unit's group
  virtual void start(int index, int slot, const Slice& slice) = 0;
  /// Issues the collectives of what was started, where that had to wait.
  /// @collective the units' groups @blocks where what they send is not there yet
  virtual void launch() {}
  /// Ends it. @blocks
  virtual void wait(int index) = 0;
  /// The unit is no longer needed. With `poison`, memory that is the slot's own is filled with NaN.
  virtual void release(int index, int slot, bool poison) = 0;
  /// Gives up what is under way: its collectives are void.
  virtual void drop_works() = 0;
  /// Where the unit's bytes are, or will be once gathered.
  virtual void* address(int index, int slot) = 0;
  /// Whether ranks read each other's shards in place, so that nobody may write its own before all
  /// have finished.
  virtual bool needs_fence() const = 0;
};

struct StoreConfig {
  int slots = 2;  ///< in the ring, each as large as the largest bundle in it
  /// These bundles have slots of their own, after the ring's, in this order.
  std::vector<int> kept = {};
};

/// A ring of buffers filled by all-gathers that land in place.
std::unique_ptr<WeightStore> make_slot_store(const std::vector<Unit>& units, const Bundles& bundles,
                                             memory::Ledger& ledger, StoreConfig config);

/// Memory that the ranks of each unit's group share: each rank's slice is its part of it, and a
/// gather is agreement.
/// @throws Error kUnsupported from make_slices() where the transport has no shared memory
std::unique_ptr<WeightStore> make_aliased_store(const std::vector<Unit>& units);

}  // namespace fsdp::engine
