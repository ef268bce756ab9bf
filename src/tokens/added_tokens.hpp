// SPDX-License-Identifier: Apache-2.0
/// Finds tokens that stand in the text as they are, such as "<|endoftext|>".
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "tokens/vocabulary.hpp"

namespace fsdp::tokens::detail {

/// Literal tokens, of which the leftmost and there the longest counts.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Found {
    std::size_t begin = 0, end = 0;  ///< both the size of the text: there is none
    Id id = -1;
  };
  /// The first at or after `begin`.
  Found next(std::string_view text, std::size_t begin) const;

 private:
  /// By their first byte, the longest first.
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  bool is_empty_ = true;
};

}  // namespace fsdp::tokens::detail
