// SPDX-License-Identifier: Apache-2.0
#include "format/checked_json.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::format::detail {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kMostNesting = 16;

/// Builds the value from a parser's events. nlohmann's own builder looks at all earlier names of an
/// object for each new one: 40,000 tensors took seconds.
class Builder : public nlohmann::json_sax<ordered_json> {
 public:
  Builder(const std::string& path, std::int64_t position) : path_(path), position_(position) {}
  ordered_json& root() { return root_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t /*elements*/) override { return open(ordered_json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(ordered_json::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    std::vector<std::string_view> names;
    for (const auto& member : open_.back()->get_ref<const ordered_json::object_t&>()) {
      names.push_back(member.first);
    }
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    FSDP_CHECK(twice == names.end(), ErrorCode::kCorrupt, "'", path_,
               "': the header has the name '", *twice, "' twice");
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    name_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    FSDP_CHECK(dynamic_cast<const ordered_json::out_of_range*>(&error) == nullptr,
               ErrorCode::kCorrupt, "'", path_, "': the header has a number beyond any double");
    fail(ErrorCode::kCorrupt, "'", path_, "': the header is not JSON: byte ",
         static_cast<std::int64_t>(byte) + position_, " of the file cannot be read");
  }

 private:
  bool add(ordered_json value) {
    place(std::move(value));
    return true;
  }
  bool open(ordered_json value) {
    FSDP_CHECK(open_.size() < kMostNesting, ErrorCode::kCorrupt, "'", path_,
               "': its JSON is nested more than ", kMostNesting, " deep");
    open_.push_back(&place(std::move(value)));
    return true;
  }
  /// Stays where it is as long as it is open: what holds it gets no other member until then.
  ordered_json& place(ordered_json value) {
    if (open_.empty()) {
      return root_ = std::move(value);
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<ordered_json::array_t&>();
      return elements.emplace_back(std::move(value));
    }
    auto& members = open_.back()->get_ref<ordered_json::object_t&>();
    return members.emplace_back(std::move(name_), std::move(value)).second;
  }

  const std::string& path_;
  std::int64_t position_;
  ordered_json root_;
  std::vector<ordered_json*> open_;
  std::string name_;
};

}  // namespace

ordered_json parse_object(const std::string& path, std::string_view text, std::int64_t position) {
  Builder builder(path, position);
  ordered_json::sax_parse(text.begin(), text.end(), &builder);
  FSDP_CHECK(builder.root().is_object(), ErrorCode::kCorrupt, "'", path,
             "': the header is JSON but not an object");
  return std::move(builder.root());
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
