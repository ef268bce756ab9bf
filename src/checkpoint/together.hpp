// SPDX-License-Identifier: Apache-2.0
/// Phases in which ranks fail together.
#pragma once

#include <functional>
#include <string>

#include "fsdp/comm/world.hpp"

namespace fsdp::checkpoint::detail {

/// Runs a phase on every rank; if it fails anywhere, every rank throws the first failing rank's
/// error, with its code and "rank R: " in front. @collective all ranks
void together(const World& world, const std::string& name, const std::function<void()>& phase);

/// Rank 0's text, on every rank. @collective all ranks
std::string broadcast_text(const World& world, const std::string& text, const std::string& name);

}  // namespace fsdp::checkpoint::detail
