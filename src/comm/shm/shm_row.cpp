// SPDX-License-Identifier: Apache-2.0
#include "comm/join/host.hpp"
#include "comm/shm/shm.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {
namespace {

std::optional<std::string> needs_one_host(const Site& site) {
  const auto& hosts = site.hosts();
  const int elsewhere = first_elsewhere(hosts);
  if (elsewhere < 0) {
    return std::nullopt;
  }
  return "needs all ranks on one host, but rank 0 is on '" + hosts[0] + "' and rank " +
         std::to_string(elsewhere) + " on '" + hosts[static_cast<std::size_t>(elsewhere)] +
         "': use gloo, or set FSDP_HOST_ID to one value where this is wrong";
}

}  // namespace

TransportRow shm_row() {
  return {.info = {.traits = shm_traits(), .between = "processes of one host"},
          .auto_order = 1,
          .cannot_run = needs_one_host,
          .make = [](const Site& site) { return make_shm_transport(site.set_up())->link(); }};
}

}  // namespace fsdp::comm::detail
