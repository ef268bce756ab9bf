// SPDX-License-Identifier: Apache-2.0
/// The transport of several hosts with several ranks each: shared memory inside a host, Gloo
/// between hosts. See NOTE [two levels].
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/gloo/gloo.hpp"
#include "comm/host_transport.hpp"

namespace fsdp::comm {

namespace detail {
inline Traits two_level_traits() { return {.name = "shm+gloo", .sums = Sums::kHostOrder}; }
inline constexpr const char* kTwoLevelBetween =
    "processes of several hosts with equally many ranks each";
}  // namespace detail

/// The ranks of each host: `hosts[r]` says where rank r runs. Returns how many ranks a host has,
/// and 0 unless all hosts have as many, two hosts and two ranks at least, in a row (0 and 1 here, 2
/// and 3 there).
int ranks_per_host(const std::vector<std::string>& hosts);

/// Ranks 0 to `ranks_per_host - 1` run on one host, those that follow on the next, and so on.
/// @collective all ranks @blocks until all are connected
/// @throws Error as make_gloo_transport() and make_shm_transport() do
std::shared_ptr<detail::HostTransport> make_two_level_transport(
    const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options, int ranks_per_host);

}  // namespace fsdp::comm
