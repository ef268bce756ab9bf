// SPDX-License-Identifier: Apache-2.0
/// What a rank has of a unit at rest: the slice that it gives to gathers, the optimizer's shard
/// inside of it, and what it keeps beside them so that gathers reach less far.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/unit/unit.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// What Slice::refresh() had to do.
struct Refreshed {
  bool was_cast = false;
  bool was_gathered = false;
  bool was_sent = false;  ///< to the device

  /// Whether the current stream has written what others read.
  bool was_written() const { return was_cast || was_gathered || was_sent; }
};

/// What the next gather of a unit sends, and with whom.
struct GatherSource {
  comm::Transport* group;
  at::Tensor src;
};

/// *Invariants*: what it holds is in the ledger as long as it lives. *Thread safety*: under the
/// engine's lock.
class Slice {
 public:
  /// `at_rest`: [rest_numel()] zeros of param_dtype at the unit's home; undefined: in memory of its
  /// own. Unit and ledger outlive this.
  Slice(const Unit& unit, int index, memory::Ledger& ledger, at::Tensor at_rest = {});
  ~Slice();
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  /// [shard_numel()]: what the optimizer owns; part of the slice unless the unit is cast.
  const at::Tensor& shard() const { return shard_; }
  /// Where operators read a resident unit.
  void* resident() const;

  /// Brings the slice up to date if the shard has changed, be it by a step, a load or an edit:
  /// casts the shard where operators take another type, and where replicas own parts of one slice
  /// (kHybridOptimizer) each gets the others'. Of a resident unit that is offloaded, it reaches the
  /// device. `place`, for one that is offloaded: [slice_numel()] on the device, where its slice is
  /// gathered or will be.
  /// @collective the replicas, in the latter case @blocks
  Refreshed refresh(const at::Tensor& place = {});
  /// It is refreshed next time in any case.
  void expire() { is_current_ = false; }

  /// A copy of its own that it gathers from next: see keep_secondary().
  bool has_secondary() const { return has_secondary_; }
  /// Keeps this rank's part of the whole unit at `whole` for the gather of backward; where the
  /// placement wants that. Returns whether it did.
  bool keep_secondary(void* whole);
  void drop_secondary() { has_secondary_ = false; }

  GatherSource gather_source() const;

 private:
  at::Tensor own_at_rest() const;
  void refresh_on_device(const at::Tensor& place);
  void gather_replicas(const at::Tensor& slice) const;
  void enter(std::int64_t sign);

  const Unit& unit_;
  int index_;
  memory::Ledger& ledger_;
  at::Tensor at_rest_;
  at::Tensor shard_;
  at::Tensor resident_;   ///< [slice_numel()] on the device: of a resident unit that is offloaded
  at::Tensor secondary_;  ///< Placement::kept of the gathered unit, while has_secondary_
  bool has_secondary_ = false;
  bool is_current_ = false;    ///< it has what the shard had at version_
  std::uint32_t version_ = 0;  ///< of the shard
};

/// Where the unit's slice lies in the gathered unit `whole`: [slice_numel()].
at::Tensor place_of_slice(const Unit& unit, const at::Tensor& whole);

/// What this rank's optimizer owns of it: [shard_numel()].
at::Tensor own_slices(const Unit& unit, const at::Tensor& whole);

}  // namespace fsdp::engine
