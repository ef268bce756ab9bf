// SPDX-License-Identifier: Apache-2.0
/// A rank's slice of a unit: what it gives to gathers, and the optimizer's shard inside of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/unit/unit.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// Makes `slice`, [rest_numel()] zeros of param_dtype, the unit's, and its shard.
void set_slice(Unit& unit, at::Tensor slice);
/// The same in memory of its own.
void make_slice(Unit& unit);

/// Enters, or strikes out, what set_slice() holds: the shard, and what lies beside it.
void enter_slice(memory::Ledger& ledger, const Unit& unit);
void strike_slice(memory::Ledger& ledger, const Unit& unit);

/// What refresh_slice() had to do.
struct Refreshed {
  bool was_cast = false;
  bool was_gathered = false;
};

/// Brings the slice up to date if the shard has changed, be it by a step, a load or an edit: casts
/// the shard where operators take another type, and where replicas own parts of one slice
/// (kHybridOptimizer) each gets the others'. Of a resident unit that is offloaded, it reaches the
/// device. `place`, for one that is offloaded: [slice_numel()] on the device, where its slice is
/// gathered or will be.
/// @collective the replicas, in the latter case @blocks
Refreshed refresh_slice(Unit& unit, int index, const at::Tensor& place = {});

/// What the next gather of the unit sends, and with whom.
struct GatherSource {
  comm::Communicator* group;
  at::Tensor src;
};
GatherSource gather_source(const Unit& unit);

/// Where the unit's slice lies in the gathered unit `whole`: [slice_numel()].
at::Tensor place_of_slice(const Unit& unit, const at::Tensor& whole);

/// What this rank's optimizer owns of it: [shard_numel()].
at::Tensor own_slices(const Unit& unit, const at::Tensor& whole);

/// Keeps this rank's part of the whole unit at `whole` for the gather of backward; where the
/// placement wants that.
void keep_secondary(Unit& unit, void* whole);

}  // namespace fsdp::engine
