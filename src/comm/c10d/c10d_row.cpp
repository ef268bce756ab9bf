// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/c10d_traits.hpp"
#include "comm/gloo/gloo.hpp"
#include "comm/transport_row.hpp"
#include "fsdp/comm/c10d.hpp"

namespace fsdp::comm::detail {

TransportRow c10d_row() {
  return {.info = {.traits = c10d_traits(), .between = kC10dBetween},
          .cannot_run = [](const Site&) { return std::optional<std::string>(); },
          .make =
              [](const Site& site) {
                Link link = make_c10d_link(connect_gloo(site.meeting().store, gloo_options(site)),
                                           site.timeout());
                // A rank that ends at once closes connections that others are still making.
                link.job->barrier({.name = "init"});
                return link;
              }};
}

}  // namespace fsdp::comm::detail
