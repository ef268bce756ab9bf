// SPDX-License-Identifier: Apache-2.0
#include "comm/threads/threads.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

TransportRow threads_row() {
  return {.info = {.traits = threads_traits(),
                   .between = "threads of one process; a process alone",
                   .has_word = false},
          .cannot_run = [](const Site& site) -> std::optional<std::string> {
            return site.size() == 1 ? std::nullopt
                                    : std::optional<std::string>("connects no processes");
          },
          .make =
              [](const Site& site) {
                return make_threads_transport(make_thread_group(1, site.timeout()), 0)->link();
              }};
}

}  // namespace fsdp::comm::detail
