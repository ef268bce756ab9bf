// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/mesh.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/dispatch_guard.hpp"
#include "comm/group_of_one.hpp"
#include "comm/join/host.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp {
namespace {

using Sizes = DeviceMesh::Sizes;

std::string text_of(const Sizes& sizes) {
  return "replicate " + std::to_string(sizes.replicate) + " x shard " + std::to_string(sizes.shard);
}

/// Every rank's `mine`, by rank. @collective
template <class Record>
std::vector<Record> gather(comm::Communicator& group, Record mine, const std::string& name) {
  const comm::detail::DispatchGuard guard;
  std::vector<Record> all(static_cast<std::size_t>(group.size()));
  const auto view = [](Record* records, std::size_t count) {
    return at::from_blob(records, {static_cast<std::int64_t>(count * sizeof(Record))}, at::kByte);
  };
  group.all_gather(view(all.data(), all.size()), view(&mine, 1), {.name = name})->wait();
  return all;
}

/// `sizes`, once all ranks have asked for them and they fit.
Sizes agreed(const World& world, const Sizes& sizes) {
  const auto all = gather(world.communicator(), sizes, "mesh");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    FSDP_CHECK(all[rank].replicate == all[0].replicate && all[rank].shard == all[0].shard,
               ErrorCode::kMismatch, "mesh: rank 0 asks for ", text_of(all[0]), ", but rank ", rank,
               " for ", text_of(all[rank]), ": all ranks need the same mesh");
  }
  const std::int64_t places = std::int64_t{sizes.replicate} * sizes.shard;
  FSDP_CHECK(sizes.replicate >= 1 && sizes.shard >= 1 && places == world.size(),
             ErrorCode::kInvalidArgument, "mesh ", text_of(sizes), " has ", places,
             " places, but the world has ", world.size(),
             " ranks: choose two sizes whose product is the number of ranks");
  return sizes;
}

/// The world's `count` ranks from `first` on, every `step`-th.
World axis(const World& world, int first, int step, int count, const std::string& name) {
  if (count == world.size()) {
    return world;
  }
  comm::Communicator& all = world.communicator();
  if (count == 1) {
    return World(comm::detail::make_group_of_one(all.shared_from_this()), 0, 1);
  }
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) {
    ranks.push_back(first + i * step);
  }
  auto group = all.split(ranks, name);
  const std::size_t host = std::hash<std::string>{}(comm::detail::host_identity());
  const auto hosts = gather(*group, host, "mesh: hosts");
  const auto before = hosts.begin() + group->rank();
  const auto local_rank = static_cast<int>(std::count(hosts.begin(), before, host));
  const auto local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), host));
  return World(std::move(group), local_rank, local_size);
}

}  // namespace

DeviceMesh::DeviceMesh(const World& world, Sizes sizes)
    : world_(world),
      sizes_(agreed(world, sizes)),
      shard_(axis(world, world.rank() / sizes.shard * sizes.shard, 1, sizes.shard, "shard")),
      replicate_(
          axis(world, world.rank() % sizes.shard, sizes.shard, sizes.replicate, "replicate")) {}

std::string DeviceMesh::describe() const { return text_of(sizes_); }

}  // namespace fsdp
