// SPDX-License-Identifier: Apache-2.0
#include "tokens/json_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/json_watcher.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::tokens::detail {

using nlohmann::json;

namespace {

constexpr std::size_t kMostNesting = 32;

}  // namespace

std::string read_file(const std::string& path) {
  struct stat status{};
  FSDP_CHECK(::stat(path.c_str(), &status) == 0,
             errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  FSDP_CHECK(S_ISREG(status.st_mode), ErrorCode::kIo, "'", path, "' is not a regular file");
  std::ifstream file(path, std::ios::binary);
  FSDP_CHECK(file, ErrorCode::kIo, "'", path, "' cannot be opened: ", std::strerror(errno));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  FSDP_CHECK(file, ErrorCode::kIo, "'", path, "' cannot be read: ", std::strerror(errno));
  return bytes;
}

json parse_json(const std::string& path, std::string_view text) {
  base::JsonWatcher<json> watcher(path, "an object", kMostNesting);
  json parsed;
  try {
    parsed = json::parse(
        text.begin(), text.end(),
        [&](int, json::parse_event_t event, json& value) { return watcher(event, value); });
  } catch (const json::parse_error& error) {
    fail(ErrorCode::kCorrupt, "'", path, "' is not JSON: byte ", error.byte, " cannot be read");
  } catch (const json::out_of_range&) {
    fail(ErrorCode::kCorrupt, "'", path, "': a number is beyond any double");
  }
  FSDP_CHECK(parsed.is_object(), ErrorCode::kCorrupt, "'", path, "' is JSON but not an object");
  return parsed;
}

KnownObject::KnownObject(const std::string& path, std::string place, const json& value)
    : path_(path), place_(std::move(place)), value_(value) {
  FSDP_CHECK(value.is_object(), ErrorCode::kCorrupt, "'", path_, "': ", place_,
             " is not an object");
}

void KnownObject::allow(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : value_.items()) {
    FSDP_CHECK(std::find(names.begin(), names.end(), name) != names.end(), ErrorCode::kUnsupported,
               "'", path_, "': ", place_, ".", name, " is not supported");
  }
}

const json& KnownObject::get(const char* name) const {
  static const json kMissing;
  const auto found = value_.find(name);
  return found == value_.end() ? kMissing : *found;
}

bool KnownObject::flag(const char* name, bool otherwise) const {
  const json& value = get(name);
  FSDP_CHECK(value.is_null() || value.is_boolean(), ErrorCode::kCorrupt, "'", path_, "': ", place_,
             ".", name, " is neither true nor false");
  return value.is_null() ? otherwise : value.get<bool>();
}

std::string KnownObject::text(const char* name, const std::string& otherwise) const {
  const json& value = get(name);
  FSDP_CHECK(value.is_null() || value.is_string(), ErrorCode::kCorrupt, "'", path_, "': ", place_,
             ".", name, " is not a string");
  return value.is_null() ? otherwise : value.get<std::string>();
}

std::int64_t KnownObject::integer(const char* name) const {
  const json& value = get(name);
  FSDP_CHECK(value.is_number_integer(), ErrorCode::kCorrupt, "'", path_, "': ", place_, ".", name,
             " is not an integer");
  return value.get<std::int64_t>();
}

void KnownObject::refuse(const char* name) const {
  const json& value = get(name);
  const bool is_off = value.is_null() || value == json(false) || value == json("");
  FSDP_CHECK(is_off, ErrorCode::kUnsupported, "'", path_, "': ", place_, ".", name,
             " is not supported");
}

void KnownObject::refuse_type() const {
  fail(ErrorCode::kUnsupported, "'", path_, "': ", place_, " of type '", text("type", ""),
       "' is not supported");
}

}  // namespace fsdp::tokens::detail
