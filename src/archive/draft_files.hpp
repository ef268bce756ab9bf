// SPDX-License-Identifier: Apache-2.0
/// Names inside of a root and of a draft.
#pragma once

#include <string>

#include "archive/draft.hpp"

namespace fsdp::archive::detail {

std::string receipt_path(const Draft& draft, int rank);
std::string sign_path(const Draft& draft, int rank);

/// Whether a file of a draft is of its making, and does not belong to the checkpoint.
bool is_scaffold_name(const std::string& name);

/// Whether an entry of a root is a draft, or what is left of one.
bool is_draft_name(const std::string& name);

}  // namespace fsdp::archive::detail
