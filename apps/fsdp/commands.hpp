// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace fsdp::apps {

/// Exit codes of the program, beside those of programs that it runs.
constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kBadInput = 2;

/// The command line as it was given, for starting the program once more on each rank.
using Arguments = std::vector<std::string>;

/// What a subcommand does once its flags are read; returns the exit code.
using Action = std::function<int()>;

/// Each declares its subcommand and returns its action.
Action add_train(CLI::App& app, const Arguments& arguments);
/// `after_dashes` is what stood behind "--", which the parser does not see.
Action add_run(CLI::App& app, const Arguments& after_dashes);
Action add_checkpoint(CLI::App& app);
Action add_generate(CLI::App& app, const Arguments& arguments);
Action add_tokenize(CLI::App& app);
Action add_eval(CLI::App& app, const Arguments& arguments);
Action add_data(CLI::App& app);

}  // namespace fsdp::apps
