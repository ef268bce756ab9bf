// SPDX-License-Identifier: Apache-2.0
#include "tokens/added_tokens.hpp"

#include <algorithm>

namespace fsdp::tokens::detail {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : is_empty_(tokens.empty()) {
  for (const AddedToken& token : tokens) {
    by_first_byte_[static_cast<unsigned char>(token.text.front())].push_back(token);
  }
  for (auto& same : by_first_byte_) {
    std::sort(same.begin(), same.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.text.size() > b.text.size();
    });
  }
}

AddedTokens::Found AddedTokens::next(std::string_view text, std::size_t begin) const {
  for (std::size_t at = begin; !is_empty_ && at < text.size(); ++at) {
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[at])]) {
      if (text.substr(at, token.text.size()) == token.text) {
        return {.begin = at, .end = at + token.text.size(), .id = token.id};
      }
    }
  }
  return {.begin = text.size(), .end = text.size(), .id = -1};
}

}  // namespace fsdp::tokens::detail
