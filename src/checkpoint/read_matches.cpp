// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_matches.hpp"

#include <iterator>

#include "fsdp/engine/shard_access.hpp"

namespace fsdp::checkpoint::detail {

void announce_writes(Sharded& sharded) {
  sharded.reshard();
  const auto access = sharded.shard_access();
  for (int unit = 0; unit < std::ssize(access->flats()); ++unit) {
    access->announce_write(unit);
  }
}

std::vector<ReadSum> read_matches(const StoredBytes& stored, const std::vector<Match>& matches,
                                  bool sums) {
  constexpr std::int64_t kAheadBytes = std::int64_t{64} << 20;
  RangeReader reader(stored, sums);
  std::vector<ReadSum> all;
  std::int64_t announced_bytes = 0, read_bytes = 0;
  auto next = matches.begin();
  for (const Match& match : matches) {
    while (next != matches.end() && announced_bytes - read_bytes < kAheadBytes) {
      announced_bytes += reader.will_read(*next->stored, *next->item);
      ++next;
    }
    all.push_back(reader.read(*match.stored, *match.item));
    read_bytes += all.back().bytes;
  }
  return all;
}

}  // namespace fsdp::checkpoint::detail
