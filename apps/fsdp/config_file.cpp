// SPDX-License-Identifier: Apache-2.0
#include "config_file.hpp"

#include <algorithm>

#include "command_line.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {
namespace {

constexpr const char* kOption = "--config";

/// The value of `--name VALUE` or `--name=VALUE`; empty for none.
std::string value_of(const Arguments& arguments, const std::string& name) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == name && i + 1 < arguments.size()) {
      return arguments[i + 1];
    }
    if (arguments[i].starts_with(name + "=")) {
      return arguments[i].substr(name.size() + 1);
    }
  }
  return "";
}

bool is_given(const Arguments& arguments, const std::string& name) {
  return std::ranges::any_of(arguments, [&](const std::string& word) {
    return word == name || word.starts_with(name + "=");
  });
}

}  // namespace

Arguments with_config_file(const CLI::App& command, Arguments arguments) {
  const std::string path = value_of(arguments, kOption);
  if (path.empty()) {
    return arguments;
  }
  Arguments all = arguments;
  for (const FileOption& option : read_config_file(path, command.get_name())) {
    const std::string name = "--" + option.name;
    const CLI::Option* known = command.get_option_no_throw(name);
    FSDP_CHECK(known != nullptr && name != kOption && name != "--help", ErrorCode::kInvalidArgument,
               option.where, ": ", unknown_option(command, name));
    const bool is_flag = known->get_items_expected_max() == 0;
    FSDP_CHECK(is_flag == option.is_flag, ErrorCode::kInvalidArgument, option.where, ": ",
               option.name, is_flag ? " is true or false" : " takes a value, not true or false");
    if (is_given(arguments, name)) {
      continue;
    }
    for (const std::string& value : option.values) {
      all.push_back(option.is_flag ? name : name + "=" + value);
    }
  }
  return all;
}

}  // namespace fsdp::apps
