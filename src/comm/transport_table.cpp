// SPDX-License-Identifier: Apache-2.0
#include "comm/transport_table.hpp"

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::comm {
namespace detail {
namespace {

constexpr const char* kAuto = "auto";

}  // namespace

std::vector<TransportRow> transport_table() {
  return {threads_row(), shm_row(), gloo_row(), two_level_row(), c10d_row()};
}

TransportRow find_row(const std::string& name) {
  for (TransportRow& row : transport_table()) {
    if (row.info.traits.name == name) {
      return std::move(row);
    }
  }
  fail(ErrorCode::kInternal, "no transport is called '", name, "'");
}

TransportRow choose_row(const Site& site) {
  if (site.wish() != kAuto) {
    TransportRow row = find_row(site.wish());
    const auto reason = row.cannot_run(site);
    FSDP_CHECK(!reason, ErrorCode::kInvalidArgument, "transport ", site.wish(), " ", *reason);
    return row;
  }
  std::vector<TransportRow> rows = transport_table();
  std::erase_if(rows, [](const TransportRow& row) { return row.auto_order == 0; });
  std::ranges::sort(rows, {}, &TransportRow::auto_order);
  std::string reasons;
  for (TransportRow& row : rows) {
    const auto reason =
        row.info.not_built.empty() ? row.cannot_run(site) : std::optional(row.info.not_built);
    if (!reason) {
      return std::move(row);
    }
    reasons += "; " + row.info.traits.name + " " + *reason;
  }
  fail(ErrorCode::kUnsupported, "no transport of this build connects these ranks", reasons);
}

}  // namespace detail

std::vector<TransportInfo> transports() {
  std::vector<TransportInfo> infos;
  for (detail::TransportRow& row : detail::transport_table()) {
    infos.push_back(std::move(row.info));
  }
  return infos;
}

std::vector<std::string> transport_words() {
  std::vector<std::string> words{detail::kAuto};
  for (const TransportInfo& info : transports()) {
    if (info.has_word) {
      words.push_back(info.traits.name);
    }
  }
  return words;
}

std::string transport_words_text() {
  const std::vector<std::string> words = transport_words();
  std::string text = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 < words.size() ? ", " : " or ") + words[i];
  }
  return text;
}

void check_transport_word(const std::string& word) {
  FSDP_CHECK(std::ranges::count(transport_words(), word) == 1, ErrorCode::kInvalidArgument,
             "transport is '", word, "', must be ", transport_words_text());
  if (word != detail::kAuto) {
    const TransportInfo info = detail::find_row(word).info;
    FSDP_CHECK(info.not_built.empty(), ErrorCode::kUnsupported, "transport ", word, " ",
               info.not_built);
  }
}

}  // namespace fsdp::comm
