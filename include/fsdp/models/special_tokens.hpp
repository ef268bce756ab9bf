// SPDX-License-Identifier: Apache-2.0
/// Tokens that mark the ends of a text, as a model's `config.json` names them. Training does not
/// look at them; drawing text ends at one of `ends`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::models {

/// The special tokens that `config.json` names.
struct SpecialTokens {
  std::optional<std::int64_t> begin = {};    ///< bos_token_id
  std::vector<std::int64_t> ends = {};       ///< eos_token_id: one or several
  std::optional<std::int64_t> padding = {};  ///< pad_token_id
  bool operator==(const SpecialTokens&) const = default;
};

}  // namespace fsdp::models
