// SPDX-License-Identifier: Apache-2.0
#include "net/key_table.hpp"

#include <charconv>
#include <limits>
#include <vector>

#include "net/store_wire.hpp"

namespace fsdp::net {
namespace {

using wire::Length;
using wire::Request;

/// None when the lengths do not fit the bytes.
std::optional<std::vector<std::string_view>> split(std::string_view bytes) {
  std::vector<std::string_view> fields;
  while (!bytes.empty()) {
    if (bytes.size() < sizeof(Length)) {
      return std::nullopt;
    }
    const std::size_t length = wire::number_of(bytes);
    bytes.remove_prefix(sizeof(Length));
    if (length > bytes.size()) {
      return std::nullopt;
    }
    fields.push_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return fields;
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  return status == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

std::string yes(std::string_view text = "") { return std::string(1, wire::kYes).append(text); }
std::string yes_or_no(bool answer) { return {answer ? wire::kYes : wire::kNo}; }
std::string refuse(const std::string& reason) { return wire::kRefused + reason; }

}  // namespace

std::optional<std::string> KeyTable::answer(std::string_view request) {
  if (request.empty()) {
    return std::nullopt;
  }
  const auto kind = static_cast<Request>(request.front());
  const auto fields = split(request.substr(1));
  if (!fields) {
    return std::nullopt;
  }
  const auto has = [&fields](std::size_t count) { return fields->size() == count; };
  const auto field = [&fields](std::size_t index) { return (*fields)[index]; };
  if (kind == Request::kSet && has(2)) {
    return put(field(0), field(1));
  }
  if (kind == Request::kGet && has(1)) {
    const auto place = texts_.find(std::string(field(0)));
    return place == texts_.end() ? yes_or_no(false) : yes(place->second);
  }
  if (kind == Request::kAdd && has(2)) {
    const auto delta = integer_of(field(1));
    return delta ? std::optional(add(field(0), *delta)) : std::nullopt;
  }
  if (kind == Request::kCompareSet && has(3)) {
    return compare_set(field(0), field(1), field(2));
  }
  if (kind == Request::kCheck) {
    for (const std::string_view key : *fields) {
      if (!texts_.contains(std::string(key))) {
        return yes_or_no(false);
      }
    }
    return yes_or_no(true);
  }
  if (kind == Request::kErase && has(1)) {
    return yes_or_no(erase(field(0)));
  }
  if (kind == Request::kCount && has(0)) {
    return yes(std::to_string(texts_.size()));
  }
  return std::nullopt;
}

std::string KeyTable::put(std::string_view key, std::string_view text) {
  const auto place = texts_.find(std::string(key));
  const std::size_t before = place == texts_.end() ? 0 : key.size() + place->second.size();
  const std::size_t after = bytes_ - before + key.size() + text.size();
  if (after > max_bytes_) {
    return refuse("the job's store holds " + std::to_string(bytes_) + " bytes and takes " +
                  std::to_string(max_bytes_) + " at most: no room for the " +
                  std::to_string(text.size()) + " of '" + std::string(key.substr(0, 80)) + "'");
  }
  bytes_ = after;
  texts_.insert_or_assign(std::string(key), std::string(text));
  return yes();
}

std::string KeyTable::add(std::string_view key, std::int64_t delta) {
  const auto place = texts_.find(std::string(key));
  const auto before =
      place == texts_.end() ? std::optional<std::int64_t>(0) : integer_of(place->second);
  std::int64_t sum = 0;
  if (!before || __builtin_add_overflow(*before, delta, &sum)) {
    return refuse("'" + std::string(key.substr(0, 80)) + "' is no number in the job's store");
  }
  if (delta == 0 && place == texts_.end()) {
    return yes("0");  // a question
  }
  std::string answer = put(key, std::to_string(sum));
  return answer.front() == wire::kYes ? yes(std::to_string(sum)) : answer;
}

std::string KeyTable::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view text) {
  const auto place = texts_.find(std::string(key));
  if (place == texts_.end() ? !expected.empty() : place->second != expected) {
    return yes(place == texts_.end() ? expected : std::string_view(place->second));
  }
  std::string answer = put(key, text);
  return answer.front() == wire::kYes ? yes(text) : answer;
}

bool KeyTable::erase(std::string_view key) {
  const auto place = texts_.find(std::string(key));
  if (place == texts_.end()) {
    return false;
  }
  bytes_ -= place->first.size() + place->second.size();
  texts_.erase(place);
  return true;
}

}  // namespace fsdp::net
