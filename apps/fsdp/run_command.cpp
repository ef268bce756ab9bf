// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>

#include "command_line.hpp"
#include "commands.hpp"
#include "fsdp/base/error.hpp"
#include "launch/launcher.hpp"

namespace fsdp::apps {
namespace {

/// The program and its arguments. A "--" that follows the program's name belongs to the program.
Arguments command_line(Arguments before_dashes, const Arguments& after_dashes) {
  if (!before_dashes.empty() && !after_dashes.empty()) {
    before_dashes.emplace_back("--");
  }
  before_dashes.insert(before_dashes.end(), after_dashes.begin(), after_dashes.end());
  return before_dashes;
}

struct RunFlags {
  launch::LaunchOptions options;
  double grace_s = 5;
  bool no_pin = false;
  std::string device;
};

}  // namespace

Action add_run(CLI::App& app, const Arguments& after_dashes) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Run a program once for each rank on this host");
  command->add_option("-n,--ranks", flags->options.ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--threads", flags->options.threads,
                   "OMP_NUM_THREADS of each rank (default: as set, else cores / ranks)")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--no-pin", flags->no_pin,
                    "Let ranks share all cores (default: each keeps to cores of its own, unless "
                    "there are more ranks than cores)");
  command
      ->add_option("--grace", flags->grace_s, "Seconds between SIGTERM and SIGKILL after a failure")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_option("--log-dir", flags->options.log_dir,
                      "Directory for one file per rank, rank-R.log, with all it writes");
  command->add_flag("--quiet-ranks", flags->options.quiet_ranks, "Show only what rank 0 writes");
  command
      ->add_option("--master-port", flags->options.master_port,
                   "Port where the ranks meet (default: a free one)")
      ->check(CLI::Range(1, 65535));
  command->add_option("--device", flags->device,
                      "FSDP_DEVICE of each rank, which init() goes by: auto, cpu, cuda or cuda:N");
  command->prefix_command();
  command->footer(
      "The ranks get torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...); lines of ranks\n"
      "above 0 begin with their number. When one fails, the others are stopped, the report names\n"
      "the first to fail, and its exit code is the job's. No process is left behind.\n"
      "Ctrl-C stops all, a second one at once; kill -USR1 asks all ranks for their state.\n"
      "\n"
      "Examples:\n"
      "  fsdp run -n 4 ./my_program --its-flag\n"
      "  fsdp run -n 2 -- python train.py");
  return [flags, command, after_dashes] {
    const Arguments before_dashes = command->remaining();
    const bool is_option = !before_dashes.empty() && before_dashes.front().starts_with('-');
    FSDP_CHECK(!is_option, ErrorCode::kInvalidArgument,
               is_option ? unknown_option(*command, before_dashes.front()) : "");
    flags->options.command = command_line(before_dashes, after_dashes);
    flags->options.grace =
        std::chrono::milliseconds(static_cast<std::int64_t>(flags->grace_s * 1e3));
    flags->options.pins_ranks = !flags->no_pin;
    if (!flags->device.empty()) {
      flags->options.environment.emplace_back("FSDP_DEVICE", flags->device);
    }
    try {
      return launch::run(flags->options);
    } catch (const Error& error) {
      // A program that is not there is bad input: nothing was started.
      FSDP_CHECK(error.code() != ErrorCode::kNotFound, ErrorCode::kInvalidArgument, error.text());
      throw;
    }
  };
}

}  // namespace fsdp::apps
