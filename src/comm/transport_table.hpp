// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

std::vector<TransportRow> transport_table();

/// @throws Error kInternal for a name that is not in the table
TransportRow find_row(const std::string& name);

/// The row for site.wish(), "auto" decided, by all ranks alike. @collective all ranks @blocks
/// @throws Error on all ranks: kInvalidArgument when the ranks cannot use what was asked for,
/// kUnsupported when "auto" finds nothing that serves
TransportRow choose_row(const Site& site);

}  // namespace fsdp::comm::detail
