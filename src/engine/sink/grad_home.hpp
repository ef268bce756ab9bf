// SPDX-License-Identifier: Apache-2.0
/// The last part of a gradient's way where shards live on the host.
///
/// NOTE [The way home]
///
///     last stage -> arrival, on the device -> transfer -> gradient shard, where it has nothing yet
///                                                      -> landing, at home -> added to what it has
///
/// A transfer runs while the next units compute backward. Arrivals and landings are areas of a
/// ring, a bundle each, so the device never holds all gradients; an area is used again when its
/// transfers have ended. Over replicas a bundle's reduction ends two bundles later, see
/// GradSink::advance_outer(): two areas serve without, three with. Transfers end in the order in
/// which they were started, and all before the gradients are handed out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/unit/bundle.hpp"
#include "engine/unit/flat_parts.hpp"
#include "engine/unit/unit.hpp"

namespace fsdp::engine {

/// *Invariants*: between begin() calls, each unit is expected at most once and sent once.
/// *Thread safety*: under the engine's lock.
class GradHome {
 public:
  /// For units that are offloaded; they and their gradient shards `grads` outlive this.
  GradHome(const std::vector<Unit>& units, const Bundles& bundles,
           const std::vector<FlatParts>& grads);
  ~GradHome() { drop(); }
  GradHome(const GradHome&) = delete;
  GradHome& operator=(const GradHome&) = delete;

  /// Makes the areas, for the units that have gradient shards now. Nothing is under way. Returns
  /// the bytes of all arrivals, on the device, and again of all landings, at home.
  std::int64_t make_areas();

  /// A reduction of `bundle` begins its last stage. @blocks until an area is free
  void begin(int bundle);
  /// Where it ends for `unit`, and whether its result is to be added to what the shard has.
  at::Tensor expect(int unit, bool adds);
  at::Tensor arrival(int unit) const;
  /// It has ended.
  void send(int unit);
  /// Brings everything that was sent into the gradient shards. @blocks
  void settle();
  /// Waits for what is under way and forgets it.
  void drop() noexcept;

 private:
  struct Transfer {
    int unit;
    bool adds;
    std::uint64_t ticket;
  };
  struct Area {
    at::Tensor arrivals, landings;  ///< bytes
    int expected = 0;               ///< units whose reduction has not ended
    std::vector<Transfer> transfers = {};
  };

  void settle(Area& area);
  at::Tensor view(const at::Tensor& bytes, int unit) const;

  const std::vector<Unit>& units_;
  const Bundles& bundles_;
  const std::vector<FlatParts>& grads_;
  Places places_;
  std::vector<Area> areas_;
  std::size_t last_ = 0;              ///< the area that begin() gave out
  std::vector<std::size_t> area_of_;  ///< by unit
  std::vector<char> adds_;            ///< by unit
};

}  // namespace fsdp::engine
