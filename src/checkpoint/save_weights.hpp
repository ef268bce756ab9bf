// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "fsdp/checkpoint/safetensors_writer.hpp"

namespace fsdp::checkpoint::detail {

/// save_safetensors() that leaves the last step to `publish`, on rank 0: it calls what it is given,
/// which puts the complete file in its place, and may put files beside it that belong to it. With
/// `dtype`, floating-point parameters are rounded to it (to nearest even).
/// @collective all ranks @memory with `dtype`, one shard in it at a time
/// @throws Error also kInvalidArgument for a weight that is finite and beyond what `dtype` holds
void save_weights(const Sharded& sharded, const std::string& path,
                  const std::map<std::string, std::string>& metadata, const StoredNameOf& name_of,
                  const std::function<void(const std::function<void()>&)>& publish,
                  std::optional<at::ScalarType> dtype = {});

}  // namespace fsdp::checkpoint::detail
