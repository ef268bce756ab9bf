// SPDX-License-Identifier: Apache-2.0
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "config_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {
namespace {

std::string place(const std::string& path, const toml::source_region& source) {
  return "'" + path + "' line " + std::to_string(source.begin.line);
}

/// A number as few digits as it has in TOML, a text as it is.
std::string text_of(const toml::node& value, const std::string& where) {
  if (const auto* text = value.as_string()) {
    return text->get();
  }
  FSDP_CHECK(value.is_number(), ErrorCode::kInvalidArgument, where,
             ": a value is a text, a number, true or false, or a list of texts or numbers");
  std::ostringstream text;
  if (const auto* whole = value.as_integer()) {
    text << whole->get();
  } else {
    text.precision(17);
    text << value.as_floating_point()->get();
  }
  return text.str();
}

FileOption option_of(const std::string& path, const toml::key& key, const toml::node& value) {
  FileOption option{.name = std::string(key.str()), .where = place(path, key.source())};
  std::ranges::replace(option.name, '_', '-');
  if (const auto* flag = value.as_boolean()) {
    option.is_flag = true;
    if (flag->get()) {
      option.values = {""};
    }
  } else if (const auto* list = value.as_array()) {
    for (const toml::node& element : *list) {
      option.values.push_back(text_of(element, option.where));
    }
  } else {
    option.values = {text_of(value, option.where)};
  }
  return option;
}

}  // namespace

std::vector<FileOption> read_config_file(const std::string& path, const std::string& table) {
  try {
    const toml::table file = toml::parse_file(path);
    std::vector<FileOption> options;
    const auto add = [&](const toml::table& from) {
      for (const auto& [key, value] : from) {
        if (key.str() != table || !value.is_table()) {
          options.push_back(option_of(path, key, value));
        }
      }
    };
    add(file);
    if (const toml::table* own = file[table].as_table()) {
      add(*own);
    }
    return options;
  } catch (const toml::parse_error& error) {
    fail(ErrorCode::kInvalidArgument, place(path, error.source()), ": ",
         std::string(error.description()));
  }
}

}  // namespace fsdp::apps
