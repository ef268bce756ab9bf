// SPDX-License-Identifier: Apache-2.0
/// The commands of the language-model half in a program that is built without it: each says so.
#include <string>

#include "commands.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {
namespace {

Action add_missing(CLI::App& app, const std::string& name) {
  CLI::App* command = app.add_subcommand(name, "(not in this build: needs FSDP_BUILD_LM=ON)");
  command->set_help_flag();
  command->prefix_command();  // takes whatever follows
  return [name]() -> int {
    throw Error(ErrorCode::kInvalidArgument,
                "'" + name +
                    "' is not in this program, which was built without language models "
                    "(FSDP_BUILD_LM=OFF); it has run and checkpoint");
  };
}

}  // namespace

Action add_train(CLI::App& app, const Arguments&) { return add_missing(app, "train"); }
Action add_generate(CLI::App& app, const Arguments&) { return add_missing(app, "generate"); }
Action add_tokenize(CLI::App& app) { return add_missing(app, "tokenize"); }
Action add_eval(CLI::App& app, const Arguments&) { return add_missing(app, "eval"); }
Action add_data(CLI::App& app) { return add_missing(app, "data"); }

}  // namespace fsdp::apps
