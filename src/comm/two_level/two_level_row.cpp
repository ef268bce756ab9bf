// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo.hpp"
#include "comm/join/host.hpp"
#include "comm/transport_row.hpp"
#include "comm/two_level/two_level.hpp"

namespace fsdp::comm::detail {
namespace {

std::optional<std::string> needs_even_hosts(const Site& site) {
  const auto& hosts = site.hosts();
  if (ranks_per_host(hosts) > 0) {
    return std::nullopt;
  }
  const int elsewhere = first_elsewhere(hosts);
  const std::string needs =
      "needs several hosts with equally many ranks each, at least two, numbered host by host, but ";
  return needs + (elsewhere < 0
                      ? "all ranks are on one: use shm"
                      : "rank 0 is on '" + hosts[0] + "' and the first elsewhere is rank " +
                            std::to_string(elsewhere) +
                            ": number the ranks so, or use gloo; FSDP_HOST_ID says what "
                            "a host is");
}

}  // namespace

TransportRow two_level_row() {
  return {.info = {.traits = two_level_traits(), .between = kTwoLevelBetween},
          .auto_order = 2,
          .cannot_run = needs_even_hosts,
          .make = [](const Site& site) {
            return make_two_level_transport(site.meeting().store, gloo_options(site),
                                            ranks_per_host(site.hosts()))
                ->link();
          }};
}

}  // namespace fsdp::comm::detail
