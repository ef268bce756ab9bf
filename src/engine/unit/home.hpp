// SPDX-License-Identifier: Apache-2.0
/// Where a unit's shards live, and how what is in them gets to the device and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/unit/unit.hpp"
#include "fsdp/engine/fully_shard.hpp"
#include "fsdp/engine/offload.hpp"

namespace fsdp::engine {

/// The copier between the host and the units' device: Offload's own, else one on a stream of the
/// device. Null where there is one memory only. Counts what it moves in `counters`.
std::unique_ptr<Copier> make_copier(const Options& options, c10::Device device, Counters& counters);

/// Sets where the shards of all units live; `copier` may be null.
void set_home(std::vector<Unit>& units, const Options& options, Copier* copier);

/// [numel] zeros of `dtype` where the unit's shards live.
at::Tensor zeros_at_home(const Unit& unit, std::int64_t numel, at::ScalarType dtype);

/// The same memory without the touch key, for copiers, which may work on other threads.
at::Tensor plain(const at::Tensor& tensor);

/// dst = src, one of them at home and the other on the device, of one dtype. Version counters do
/// not see it where the unit is offloaded. @blocks
void transfer(const Unit& unit, const at::Tensor& dst, const at::Tensor& src);

/// Waits for a transfer whose values nobody needs, so that its memory is free again. @blocks
void abandon(const Unit& unit, std::uint64_t ticket) noexcept;

}  // namespace fsdp::engine
