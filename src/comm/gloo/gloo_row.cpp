// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm {

GlooOptions gloo_options(const detail::Site& site) {
  return {.rank = site.rank(),
          .size = site.size(),
          .master_addr = site.meeting().master_address,
          .timeout = site.timeout()};
}

namespace detail {

TransportRow gloo_row() {
  return {.info = {.traits = gloo_traits(), .between = kGlooBetween},
          .auto_order = 3,
          .cannot_run = [](const Site&) { return std::optional<std::string>(); },
          .make =
              [](const Site& site) {
                return make_gloo_transport(site.meeting().store, gloo_options(site))->link();
              }};
}

}  // namespace detail
}  // namespace fsdp::comm
