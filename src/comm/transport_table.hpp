// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {

std::vector<TransportRow> transport_table();

/// @throws Error kInternal for a name that is not in the table
TransportRow find_row(const std::string& name);

/// The link that site.wish() and site.device() ask for: of a transport of the host, and on an
/// accelerator of one of its own over it. @collective all ranks @blocks until all are connected
/// @throws as choose_row() and the rows' `make` do
Link connect(const Site& site);

/// The row for site.wish(), "auto" decided, by all ranks alike. @collective all ranks @blocks
/// @throws Error on all ranks: kInvalidArgument when the ranks cannot use what was asked for,
/// kUnsupported when "auto" finds nothing that serves
TransportRow choose_row(const Site& site);

}  // namespace fsdp::comm::detail
