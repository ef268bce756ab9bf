// SPDX-License-Identifier: Apache-2.0
/// A row of the table of transports, which each transport's folder gives, and the folder of what a
/// build is without gives with the reason.
#pragma once

#include <optional>
#include <string>

#include "comm/join/site.hpp"
#include "fsdp/comm/transports.hpp"

namespace fsdp::comm::detail {

struct TransportRow {
  TransportInfo info;
  /// "auto" takes the first in this order that can run; 0: only when asked for by name.
  int auto_order = 0;
  /// Why the ranks cannot use it, to be read behind its name; the same on all. @collective @blocks
  std::optional<std::string> (*cannot_run)(const Site&) = nullptr;
  /// @collective @blocks until all are connected
  Link (*make)(const Site&) = nullptr;
};

TransportRow threads_row();
TransportRow shm_row();
TransportRow gloo_row();
TransportRow two_level_row();
TransportRow c10d_row();

}  // namespace fsdp::comm::detail
