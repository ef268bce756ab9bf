// SPDX-License-Identifier: Apache-2.0
#include "engine/sink/grad_home.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/tensor_at.hpp"
#include "engine/unit/home.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

GradHome::GradHome(const std::vector<Unit>& units, const Bundles& bundles,
                   const std::vector<FlatParts>& grads)
    : units_(units), bundles_(bundles), grads_(grads), area_of_(units.size()), adds_(units.size()) {
  const bool has_both_stages =
      std::ranges::any_of(units, [](const Unit& unit) { return unit.placement.has_both_stages(); });
  areas_.resize(has_both_stages ? 3 : 2);
}

std::int64_t GradHome::make_areas() {
  places_ = place(units_, bundles_, [&](const Unit& unit, std::size_t index) {
    return grads_[index].is_defined() ? unit.shard_bytes() : 0;
  });
  const std::int64_t bytes = places_.largest([](int) { return true; });
  for (Area& area : areas_) {
    area.arrivals = at::empty({bytes}, at::TensorOptions(at::kByte).device(units_.front().device));
    area.landings = zeros_at_home(units_.front(), bytes, at::kByte);
  }
  return bytes * static_cast<std::int64_t>(areas_.size());
}

void GradHome::begin(int bundle) {
  last_ = (last_ + 1) % areas_.size();
  settle(areas_[last_]);
  for (int unit : bundles_.members(bundle)) {
    area_of_[static_cast<std::size_t>(unit)] = last_;
  }
}

at::Tensor GradHome::expect(int unit, bool adds) {
  const auto index = static_cast<std::size_t>(unit);
  ++areas_[area_of_[index]].expected;
  adds_[index] = adds ? 1 : 0;
  return arrival(unit);
}

at::Tensor GradHome::arrival(int unit) const {
  return view(areas_[area_of_[static_cast<std::size_t>(unit)]].arrivals, unit);
}

void GradHome::send(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  const Unit& of = units_[index];
  Area& area = areas_[area_of_[index]];
  const bool adds = adds_[index] != 0;
  const at::Tensor dst = adds ? view(area.landings, unit) : grads_[index].flat();
  area.transfers.push_back(
      {.unit = unit, .adds = adds, .ticket = of.home.copier->start(dst, arrival(unit))});
  --area.expected;
}

void GradHome::settle() {
  for (std::size_t i = 1; i <= areas_.size(); ++i) {
    settle(areas_[(last_ + i) % areas_.size()]);
  }
}

void GradHome::settle(Area& area) {
  FSDP_ASSERT(area.expected == 0, area.expected,
              " units are still being reduced into an area that is needed again");
  for (const Transfer& transfer : std::exchange(area.transfers, {})) {
    const auto index = static_cast<std::size_t>(transfer.unit);
    units_[index].home.copier->wait(transfer.ticket);
    if (transfer.adds) {
      grads_[index].flat().add_(view(area.landings, transfer.unit));
    }
  }
}

void GradHome::drop() noexcept {
  for (Area& area : areas_) {
    area.expected = 0;
    for (const Transfer& transfer : std::exchange(area.transfers, {})) {
      abandon(units_[static_cast<std::size_t>(transfer.unit)], transfer.ticket);
    }
  }
}

at::Tensor GradHome::view(const at::Tensor& bytes, int unit) const {
  const auto index = static_cast<std::size_t>(unit);
  const Unit& of = units_[index];
  return comm::tensor_at(static_cast<char*>(bytes.data_ptr()) + places_.offset[index],
                         of.shard_numel(), of.dtype, bytes.device());
}

}  // namespace fsdp::engine
