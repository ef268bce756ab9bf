// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/mesh.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "comm/group_of_one.hpp"
#include "comm/join/host.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp {
namespace {

std::string text_of(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) {
    text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  }
  return text;
}

/// A mesh as ranks compare it: of one size, whatever it says.
struct Wish {
  std::uint64_t hash = 0;
  std::array<char, 248> text = {};  ///< its first letters, for people; ends with a zero
};

Wish wish_for(const std::string& text) {
  Wish wish{.hash = base::fnv1a(text)};
  std::copy_n(text.begin(), std::min(text.size(), wish.text.size() - 1), wish.text.begin());
  return wish;
}

/// `axes`, once all ranks have asked for them and they fit.
std::vector<MeshAxis> agreed(const World& world, std::vector<MeshAxis> axes) {
  const std::string text = text_of(axes);
  const auto all = comm::gather_values(world.job(), wish_for(text), "mesh");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    FSDP_CHECK(all[rank].hash == all[0].hash, ErrorCode::kMismatch, "mesh: rank 0 asks for ",
               all[0].text.data(), ", but rank ", rank, " for ", all[rank].text.data(),
               ": all ranks need the same mesh");
  }
  std::int64_t places = 1;
  bool are_positive = true;
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    places *= axis->size;
    are_positive = are_positive && axis->size >= 1;
    FSDP_CHECK(!axis->name.empty() &&
                   std::find_if(axes.begin(), axis,
                                [&](const MeshAxis& of) { return of.name == axis->name; }) == axis,
               ErrorCode::kInvalidArgument, "mesh ", text, " has an axis \"", axis->name,
               "\", whose name is empty or there twice");
  }
  FSDP_CHECK(are_positive && places == world.size(), ErrorCode::kInvalidArgument, "mesh ", text,
             " has ", places, " places, but the world has ", world.size(),
             " ranks: choose sizes whose product is the number of ranks");
  return axes;
}

World alone(const World& world) {
  return World(comm::detail::make_group_of_one(world.link())->link(), 0, 1);
}

/// The world's `count` ranks from `first` on, every `step`-th.
World axis(const World& world, int first, int step, int count, const std::string& name) {
  if (count == world.size()) {
    return world;
  }
  if (count == 1) {
    return alone(world);
  }
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) {
    ranks.push_back(first + i * step);
  }
  comm::Link group = world.link().split(ranks, name);
  const std::uint64_t host = base::fnv1a(comm::detail::host_identity());
  const auto hosts = comm::gather_values(*group.job, host, "mesh: hosts");
  const auto before = hosts.begin() + group.rank();
  const auto local_rank = static_cast<int>(std::count(hosts.begin(), before, host));
  const auto local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), host));
  return World(std::move(group), local_rank, local_size);
}

/// How far apart neighbours along an axis are: the places of all axes inside of it.
int step_of(const std::vector<MeshAxis>& axes, const std::string& name) {
  int step = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend() && axis->name != name; ++axis) {
    step *= axis->size;
  }
  return step;
}

}  // namespace

DeviceMesh::DeviceMesh(const World& world, std::vector<MeshAxis> axes)
    : world_(world), axes_(agreed(world, std::move(axes))), alone_(alone(world)) {
  for (const MeshAxis& of : axes_) {
    const int step = step_of(axes_, of.name);
    const int first = world.rank() - world.rank() / step % of.size * step;
    groups_.push_back(axis(world, first, step, of.size, of.name));
  }
}

int DeviceMesh::size(std::string_view axis) const { return along(axis).size(); }
int DeviceMesh::index(std::string_view axis) const { return along(axis).rank(); }

const World& DeviceMesh::along(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &MeshAxis::name);
  return found == axes_.end() ? alone_ : groups_[static_cast<std::size_t>(found - axes_.begin())];
}

void DeviceMesh::refuse_others(std::initializer_list<std::string_view> known,
                               const std::string& reader) const {
  for (const MeshAxis& axis : axes_) {
    FSDP_CHECK(axis.size == 1 || std::ranges::find(known, axis.name) != known.end(),
               ErrorCode::kUnsupported, reader, " does not know the axis \"", axis.name,
               "\" of the mesh ", describe(), ", which has ", axis.size,
               " ranks: pass a mesh of the axes that it knows, or of size 1");
  }
}

std::string DeviceMesh::describe() const { return text_of(axes_); }

}  // namespace fsdp
