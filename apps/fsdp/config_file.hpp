// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "commands.hpp"

namespace fsdp::apps {

/// The command line with what the TOML file of --config says behind it: its keys are the options of
/// `command` without dashes, `lr = 1e-4`, at the top or in a table of the command's name. What
/// stands in the command line goes first. Unchanged where there is no --config.
/// @throws Error kInvalidArgument naming the file's line for a key that is no option, a value that
/// is none, or a text that is no TOML; and in a build without toml++, saying what is missing
Arguments with_config_file(const CLI::App& command, Arguments arguments);

/// An option of a file as the command line has it.
struct FileOption {
  std::string name;                      ///< "lr"
  std::vector<std::string> values = {};  ///< none of a flag that is off
  bool is_flag = false;
  std::string where;  ///< "'FILE' line 3"
};
/// What a TOML file says, in its order. CMake chooses config_file_toml.cpp or no_config_file.cpp.
std::vector<FileOption> read_config_file(const std::string& path, const std::string& table);

}  // namespace fsdp::apps
