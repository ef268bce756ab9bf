// SPDX-License-Identifier: Apache-2.0
/// Everything about a save that is known before a byte is copied.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "archive/plan.hpp"
#include "checkpoint/items.hpp"
#include "fsdp/checkpoint/saver.hpp"

namespace fsdp::checkpoint::detail {

struct SavePlan {
  std::vector<Item> items;  ///< in the order of index.tensors
  std::vector<archive::PlannedFile> files;
  archive::Index index;
  std::map<std::string, std::string> documents;
};

/// The same on every rank but for the items' values. @throws Error kInvalidArgument for a section
/// of `state` that is taken; kUnsupported for a dtype that safetensors does not know
SavePlan make_save_plan(const Sharded& sharded, const OptimizerState* optimizer, std::int64_t step,
                        const RunState& state, std::int64_t max_file_bytes);

}  // namespace fsdp::checkpoint::detail
