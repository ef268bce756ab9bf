// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/promise.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fsdp::engine {

void Promise::renew(std::int64_t moment_bytes) {
  own_ = ledger_.live();
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    own_[static_cast<memory::Kind>(kind)] -= held_[static_cast<memory::Kind>(kind)];
  }
  own_[memory::Kind::kFullScope] = 0;
  own_[memory::Kind::kMoments] = moment_bytes;
}

/// What optimizers hold lies where the shards do.
memory::Kind Promise::kind_of_held(memory::Kind kind) const {
  return layout_.is_offloaded() && kind == memory::Kind::kStaging ? memory::Kind::kOffloadHost
                                                                  : kind;
}

void Promise::hold(memory::Kind kind, std::int64_t bytes) {
  kind = kind_of_held(kind);
  ledger_.add(kind, bytes);
  held_[kind] += bytes;
  most_held_[kind] = std::max(most_held_[kind], held_[kind]);
  has_optimizer_ = has_optimizer_ || kind == memory::Kind::kMoments;
}

void Promise::release(memory::Kind kind, std::int64_t bytes) {
  kind = kind_of_held(kind);
  ledger_.remove(kind, bytes);
  held_[kind] -= bytes;
}

memory::Bytes Promise::bytes() const {
  memory::Bytes bytes = own_;
  if (has_optimizer_) {
    bytes[memory::Kind::kMoments] = 0;
  }
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    bytes[static_cast<memory::Kind>(kind)] += most_held_[static_cast<memory::Kind>(kind)];
  }
  return bytes;
}

void Promise::print(int rank, int ranks, double divisor) {
  if (std::exchange(has_printed_, true) || !options_.debug.print_promise || rank != 0) {
    return;
  }
  std::fprintf(stderr,
               "fsdp: %d units over %d ranks, %s; gradients are summed over ranks and divided by "
               "%g; each rank holds at most\n%s",
               layout_.count(), ranks, to_string(options_.strategy), divisor,
               memory::format(bytes()).c_str());
  for (const UnitRule& rule : options_.rules) {
    std::fprintf(stderr, "  rule: %s\n", to_string(rule).c_str());
  }
  if (layout_.is_offloaded()) {
    std::fprintf(stderr, "  of which on the host %11s\n",
                 memory::format_bytes(memory::on_host(bytes()).total()).c_str());
  }
}

}  // namespace fsdp::engine
