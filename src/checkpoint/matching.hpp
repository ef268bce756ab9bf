// SPDX-License-Identifier: Apache-2.0
/// Which stored tensor goes into which tensor here: names, other names, shapes.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/items.hpp"
#include "fsdp/archive/index.hpp"
#include "fsdp/checkpoint/loader.hpp"

namespace fsdp::checkpoint::detail {

/// An item and the stored tensor that it is to hold.
struct Match {
  const Item* item = nullptr;
  const archive::Tensor* stored = nullptr;
};

/// Finds each item in the index and enters what is missing, unexpected and mismatched in `report`.
/// Stored optimizer tensors count only when `with_optimizer`.
std::vector<Match> match(const std::vector<Item>& items, const archive::Index& index,
                         bool with_optimizer, LoadReport& report);

/// All of a report's lists in one message. @throws Error kMismatch unless all are empty
void require_all(const LoadReport& report);

}  // namespace fsdp::checkpoint::detail
