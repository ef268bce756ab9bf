// SPDX-License-Identifier: Apache-2.0
#include "comm/staged/staged.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

TransportRow staged_row() {
  return {.info = {.traits = staged_traits(),
                   .between = "any devices, through copies on the host",
                   .carries_device = true},
          .cannot_run = [](const Site&) { return std::optional<std::string>(); },
          .make_over = [](const Site& site,
                          const Link& host) { return make_staged_link(host, site.device()); }};
}

}  // namespace fsdp::comm::detail
