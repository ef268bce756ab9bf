// SPDX-License-Identifier: Apache-2.0
#include "training/arguments.hpp"

#include <CLI/CLI.hpp>

#include "fsdp/base/error.hpp"

namespace bench {

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Training steps of a GPT, for ./dev bench");
  app.add_option("--system", arguments.system)
      ->check(CLI::IsMember({"fsdp", "plain", "traffic", "write"}));
  app.add_option("--transport", arguments.transport);
  app.add_option("--store", arguments.store)->check(CLI::IsMember({"slots", "aliased"}));
  app.add_option("--width", arguments.model.width);
  app.add_option("--layers", arguments.model.layers);
  app.add_option("--heads", arguments.model.heads);
  app.add_option("--sequence", arguments.model.context);
  app.add_option("--batch", arguments.batch);
  app.add_option("--prefetch", arguments.prefetch);
  app.add_option("--warmup", arguments.warmup);
  app.add_option("--steps", arguments.steps);
  app.add_option("--memory-steps", arguments.memory_steps);
  app.add_option("--weights", arguments.weights)->required();
  app.add_option("--tokens", arguments.tokens)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    fsdp::fail(fsdp::ErrorCode::kInvalidArgument, error.what());
  }
  return arguments;
}

}  // namespace bench
