// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands.hpp"
#include "launch/launcher.hpp"

namespace fsdp::apps {

/// How this program, with the same arguments, is started on each of `ranks` ranks.
launch::LaunchOptions own_ranks(const Arguments& arguments, int ranks);

}  // namespace fsdp::apps
