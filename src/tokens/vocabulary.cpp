// SPDX-License-Identifier: Apache-2.0
#include "tokens/vocabulary.hpp"

#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::tokens::detail {

void Vocabulary::place(std::int64_t id, std::string bytes) {
  FSDP_CHECK(id >= 0 && id < kMostIds, ErrorCode::kCorrupt, "'", path_, "': token '",
             printable(bytes), "' has the id ", id, ", expected 0 to ", kMostIds - 1);
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
  }
  FSDP_CHECK(!tokens_[index], ErrorCode::kCorrupt, "'", path_, "': the id ", id,
             " belongs to the token '", printable(tokens_[index].value_or("")), "' and to '",
             printable(bytes), "'");
  tokens_[index] = std::move(bytes);
}

void Vocabulary::add(std::int64_t id, std::string bytes) {
  const auto [known, is_new] = ids_.emplace(bytes, static_cast<Id>(id));
  FSDP_CHECK(is_new, ErrorCode::kCorrupt, "'", path_, "': the token '", printable(bytes),
             "' has the ids ", known->second, " and ", id);
  place(id, std::move(bytes));
}

void Vocabulary::add_spelled(std::int64_t id, const std::string& spelling, std::string bytes) {
  const auto [known, is_new] = ids_.emplace(spelling, static_cast<Id>(id));
  FSDP_CHECK(is_new, ErrorCode::kCorrupt, "'", path_, "': the token '", printable(spelling),
             "' has the ids ", known->second, " and ", id);
  place(id, std::move(bytes));
}

void Vocabulary::add_unreachable(std::int64_t id, std::string bytes) {
  place(id, std::move(bytes));
}

void Vocabulary::add_literal(std::int64_t id, const std::string& text) {
  const auto known = token(id);
  FSDP_CHECK(!known || *known == text, ErrorCode::kCorrupt, "'", path_, "': the added token '",
             printable(text), "' has the id ", id, ", which belongs to '",
             printable(known.value_or("")), "'");
  if (!known) {
    place(id, text);
  }
}

std::optional<std::string_view> Vocabulary::token(std::int64_t id) const {
  if (id < 0 || id >= size()) {
    return std::nullopt;
  }
  const std::optional<std::string>& bytes = tokens_[static_cast<std::size_t>(id)];
  return bytes ? std::optional<std::string_view>(*bytes) : std::nullopt;
}

std::optional<Id> Vocabulary::find(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? std::nullopt : std::optional<Id>(found->second);
}

std::array<Id, 256> Vocabulary::single_bytes() const {
  std::array<Id, 256> ids{};
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    const auto character = static_cast<char>(byte);
    ids[byte] = find(std::string_view(&character, 1)).value_or(-1);
  }
  return ids;
}

}  // namespace fsdp::tokens::detail
