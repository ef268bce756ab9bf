// SPDX-License-Identifier: Apache-2.0
#include "format/checked_json.hpp"

#include <limits>
#include <set>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::format::detail {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kMostNesting = 16;

/// What nlohmann does not tell: names given twice, and how deep a text goes.
class Watcher {
 public:
  explicit Watcher(const std::string& path) : path_(path) {}

  bool operator()(ordered_json::parse_event_t event, const ordered_json& parsed) {
    using Event = ordered_json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      FSDP_CHECK(open_.size() < kMostNesting, ErrorCode::kCorrupt, "'", path_,
                 "': its JSON is nested more than ", kMostNesting, " deep");
      open_.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      const auto name = parsed.get<std::string>();
      FSDP_CHECK(open_.back().insert(name).second, ErrorCode::kCorrupt, "'", path_,
                 "': the header has the name '", name, "' twice");
    }
    return true;
  }

 private:
  const std::string& path_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

ordered_json parse_object(const std::string& path, std::string_view text, std::int64_t position) {
  Watcher watcher(path);
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
