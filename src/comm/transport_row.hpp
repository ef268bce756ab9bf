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
  bool needs_own_device = false;  ///< no two ranks may be on one
  /// In place of `make` where TransportInfo::carries_device: over `host`, which connects the same
  /// ranks, for tensors of Site::device(). @collective @blocks until all are connected
  Link (*make_over)(const Site&, const Link& host) = nullptr;
};

TransportRow threads_row();
TransportRow shm_row();
TransportRow gloo_row();
TransportRow two_level_row();
TransportRow c10d_row();
TransportRow nccl_row();
TransportRow staged_row();

}  // namespace fsdp::comm::detail
