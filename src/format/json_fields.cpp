// SPDX-License-Identifier: Apache-2.0
#include "format/json_fields.hpp"

#include <limits>

namespace fsdp::format::detail {

using nlohmann::ordered_json;

namespace {

bool is_int64(const ordered_json& value) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost);
}

}  // namespace

std::string joined(const Problems& problems) {
  std::string all;
  for (const std::string& problem : problems) {
    all += (all.empty() ? "" : "; ") + problem;
  }
  return all;
}

const ordered_json* Fields::find(const std::string& name) {
  seen_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::wrong_type(const std::string& name, const ordered_json& value, const char* wanted) {
  problem(prefix_ + name + " is " + value.dump() + ", must be " + wanted);
}

std::int64_t Fields::integer(const std::string& name, std::int64_t otherwise) {
  const ordered_json* value = find(name);
  if (value == nullptr) {
    return otherwise;
  }
  if (!is_int64(*value)) {
    wrong_type(name, *value, "an integer");
    return otherwise;
  }
  return value->get<std::int64_t>();
}

std::int64_t Fields::integer_or_none(const std::string& name, std::int64_t absent) {
  return object_.contains(name) ? integer(name, 0) : integer(name, absent);
}

std::int64_t Fields::required(const std::string& name) {
  if (find(name) == nullptr) {
    problem(prefix_ + name + " is missing");
    return 1;
  }
  return integer(name, 1);
}

double Fields::number(const std::string& name, double otherwise) {
  const ordered_json* value = find(name);
  if (value != nullptr && !value->is_number()) {
    wrong_type(name, *value, "a number");
    return otherwise;
  }
  return value == nullptr ? otherwise : value->get<double>();
}

bool Fields::truth(const std::string& name, bool otherwise) {
  const ordered_json* value = find(name);
  if (value != nullptr && !value->is_boolean()) {
    wrong_type(name, *value, "true or false");
    return otherwise;
  }
  return value == nullptr ? otherwise : value->get<bool>();
}

std::string Fields::text(const std::string& name, const std::string& otherwise) {
  const ordered_json* value = find(name);
  if (value != nullptr && !value->is_string()) {
    wrong_type(name, *value, "a text");
    return otherwise;
  }
  return value == nullptr ? otherwise : value->get<std::string>();
}

std::optional<std::int64_t> Fields::token(const std::string& name) {
  return find(name) == nullptr ? std::nullopt : std::optional(integer(name, 0));
}

std::vector<std::int64_t> Fields::tokens(const std::string& name) {
  const ordered_json* value = find(name);
  if (value == nullptr) {
    return {};
  }
  if (!value->is_array()) {
    return {integer(name, 0)};
  }
  std::vector<std::int64_t> all;
  for (const ordered_json& element : *value) {
    if (!is_int64(element)) {
      wrong_type(name, *value, "an integer or a list of integers");
      return {};
    }
    all.push_back(element.get<std::int64_t>());
  }
  return all;
}

void Fields::must_be(const std::string& name, const ordered_json& value) {
  const ordered_json* found = find(name);
  if (found != nullptr && *found != value) {
    problem(prefix_ + name + " is " + found->dump() + ", only " + value.dump() + " is supported");
  }
}

void Fields::must_be_empty(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const ordered_json* found = find(name);
    const bool is_empty = found == nullptr || *found == false || *found == "" ||
                          (found->is_structured() && found->empty());
    if (!is_empty) {
      problem(prefix_ + name + " is " + found->dump() + ", must be absent or empty");
    }
  }
}

void Fields::ignore(std::initializer_list<const char*> names) {
  seen_.insert(names.begin(), names.end());
}

void Fields::finish() {
  for (const auto& [name, value] : object_.items()) {
    if (!seen_.contains(name)) {
      problem(prefix_ + name + " is not known to this library");
    }
  }
}

}  // namespace fsdp::format::detail
