// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "config_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {

namespace {

/// Who is speaking: ranks share one terminal.
std::string speaker() {
  const char* rank = std::getenv("RANK");
  const std::string_view digits = rank == nullptr ? "" : rank;
  const bool is_number =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? "fsdp: rank " + std::string(digits) : "fsdp";
}

int report(const std::string& text, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", speaker().c_str(), fsdp::base::shown(text).c_str());
  return code;
}

int run(const Action& action) {
  try {
    const int code = action();
    // What was printed may wait in memory until here, and a full disk be noticed only now.
    const bool has_lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    return has_lost && code == kSuccess
               ? report(
                     "standard output could not be written, some of it is lost: is its disk full?",
                     kFailure)
               : code;
  } catch (const fsdp::Error& error) {
    const bool bad_input = error.code() == fsdp::ErrorCode::kInvalidArgument;
    return report(bad_input ? error.text() : error.what(), bad_input ? kBadInput : kFailure);
  } catch (const std::exception& error) {
    const bool wanted = std::getenv("FSDP_STACK") != nullptr;
    return report(wanted ? error.what() : fsdp::base::first_line(error.what()), kFailure);
  }
}

}  // namespace

int program(int argc, char** argv) {
  CLI::App app("Fully Sharded Data Parallel training for LibTorch", "fsdp");
  app.set_version_flag("--version", "fsdp " FSDP_VERSION " (LibTorch " FSDP_TORCH_VERSION ")");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  fsdp train                             the default model on the default text, 2 ranks\n"
      "  fsdp train --data my.txt --steps 500   another text\n"
      "  fsdp generate runs/model --prompt \"In \"  text from saved weights\n"
      "  fsdp run -n 4 ./my_program --its-flag  any program, as 4 ranks\n"
      "  fsdp checkpoint ls runs/mine           what a run has saved\n"
      "  fsdp tokenize --tokenizer models/gpt2 my.txt\n"
      "\n"
      "Exit codes: 0 success, 1 failure, 2 bad input; run: that of the rank that failed first.");
  const Arguments arguments(argv + 1, argv + argc);
  const Action train = add_train(app, arguments);
  // CLI11 would read what follows "--" as positional arguments of its own.
  char** const dashes = std::find(argv, argv + argc, std::string_view("--"));
  const Arguments after_dashes(std::min(dashes + 1, argv + argc), argv + argc);
  const Action run_program = add_run(app, after_dashes);
  const Action use_checkpoint = add_checkpoint(app);
  const Action generate = add_generate(app, arguments);
  const Action tokenize = add_tokenize(app);
  const Action eval = add_eval(app, arguments);
  const Action use_data = add_data(app);
  make_strict(app, {"--out", "--prompt"});
  try {
    Arguments words(argv + 1, dashes);
    if (words.size() > 1 && words.front() == "train") {
      words = with_config_file(*app.get_subcommand("train"), std::move(words));
    }
    std::reverse(words.begin(), words.end());  // as the parser wants them
    app.parse(std::move(words));
    if (!app.got_subcommand("run") && !after_dashes.empty()) {
      return report("'" + after_dashes.front() + "' was not expected after --", kBadInput);
    }
  } catch (const fsdp::Error& error) {
    return report(error.text(), kBadInput);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      return app.exit(error);
    }
    return report(explain(app, error), kBadInput);
  }
  if (!app.got_subcommand("run")) {  // whose program decides for itself
    // A file that `ulimit -f` does not let grow is an error with its name, and no death.
    std::signal(SIGXFSZ, SIG_IGN);
  }
  if (app.got_subcommand("checkpoint")) {
    return run(use_checkpoint);
  }
  if (app.got_subcommand("generate")) {
    return run(generate);
  }
  if (app.got_subcommand("tokenize")) {
    return run(tokenize);
  }
  if (app.got_subcommand("eval")) {
    return run(eval);
  }
  if (app.got_subcommand("data")) {
    return run(use_data);
  }
  return run(app.got_subcommand("train") ? train : run_program);
}

}  // namespace fsdp::apps
