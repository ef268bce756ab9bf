// SPDX-License-Identifier: Apache-2.0
/// Which cores each rank may run on.
#pragma once

#include <sched.h>

#include <vector>

namespace fsdp::launch::detail {

/// The cores that this process may use, divided into `ranks` runs of neighbours that differ by one
/// core at most; empty when there are more ranks than cores or the system does not say.
///
/// A rank that the system moves leaves its caches behind, and one that shares a core with another
/// rank makes all the others wait for both.
std::vector<cpu_set_t> divide_cores(int ranks);

}  // namespace fsdp::launch::detail
