// SPDX-License-Identifier: Apache-2.0
#include "format/checked_json.hpp"

#include <limits>

#include "base/json_watcher.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::format::detail {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kMostNesting = 16;

}  // namespace

ordered_json parse_object(const std::string& path, std::string_view text, std::int64_t position) {
  base::JsonWatcher<ordered_json> watcher(path, "the header", kMostNesting);
  ordered_json parsed;
  try {
    parsed = ordered_json::parse(text.begin(), text.end(),
                                 [&](int, ordered_json::parse_event_t event, ordered_json& value) {
                                   return watcher(event, value);
                                 });
  } catch (const ordered_json::parse_error& error) {
    fail(ErrorCode::kCorrupt, "'", path, "': the header is not JSON: byte ",
         static_cast<std::int64_t>(error.byte) + position, " of the file cannot be read");
  } catch (const ordered_json::out_of_range&) {
    fail(ErrorCode::kCorrupt, "'", path, "': the header has a number beyond any double");
  }
  FSDP_CHECK(parsed.is_object(), ErrorCode::kCorrupt, "'", path,
             "': the header is JSON but not an object");
  return parsed;
}

std::int64_t as_size(const ordered_json& value, const std::string& path, const std::string& what) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost) &&
                    value.get<std::int64_t>() >= 0;
  FSDP_CHECK(fits, ErrorCode::kCorrupt, "'", path, "': ", what, " is ", value.dump(),
             ", expected an integer that is not negative");
  return value.get<std::int64_t>();
}

}  // namespace fsdp::format::detail
