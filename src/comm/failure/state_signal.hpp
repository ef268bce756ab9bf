// SPDX-License-Identifier: Apache-2.0
/// `kill -USR1 PID` asks a rank what it is doing, without stopping it.
#pragma once

namespace fsdp::comm::detail {

/// From now on SIGUSR1 makes this process write what its groups are doing to standard error
/// (see CollectiveLog::describe). Does nothing where the program handles the signal itself, and the
/// second time.
void print_collectives_on_signal();

}  // namespace fsdp::comm::detail
