// SPDX-License-Identifier: Apache-2.0
/// Names inside of a root and of a draft.
#pragma once

#include <string>

#include "archive/draft.hpp"

namespace fsdp::archive::detail {

std::string receipt_path(const Draft& draft, int rank);

/// Whether an entry of a root is a draft, or what is left of one.
bool is_draft_name(const std::string& name);

}  // namespace fsdp::archive::detail
