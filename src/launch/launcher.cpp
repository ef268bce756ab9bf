// SPDX-License-Identifier: Apache-2.0
#include "launch/launcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "fsdp/base/error.hpp"
#include "launch/core_sets.hpp"
#include "launch/descendants.hpp"
#include "launch/guardian.hpp"
#include "launch/own_process.hpp"
#include "launch/rank_environment.hpp"
#include "launch/rank_output.hpp"
#include "launch/rank_process.hpp"
#include "launch/report.hpp"
#include "launch/stop_signals.hpp"
#include "launch/terminal.hpp"
#include "net/network.hpp"

namespace fsdp::launch {
namespace {

using base::Descriptor;
using detail::Clock;
using detail::GuardianEvent;
using detail::Milliseconds;
using detail::StopSignals;

/// The port is the job's name on this host: see net::private_path(). While it is held here, no
/// other job gets it.
Descriptor hold_port(std::uint16_t port) {
  try {
    return net::hold_port(port);
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, error.text(),
         ". Without --master-port a free port is chosen");
  }
}

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options) : options_(options) {}

  int run();

 private:
  struct Streams {
    detail::RankOutput output;
    detail::RankOutput error;
  };

  void prepare();
  Descriptor route(int number, int terminal, const std::shared_ptr<detail::LogFile>& log,
                   detail::RankOutput& output);
  void supervise();
  void move_output();
  void wait_for_news(int channel);
  void take(const GuardianEvent& event);
  int conclude();
  bool is_over() const;
  void say(const std::string& text) { error_.write("fsdp run: " + text + "\n"); }

  const LaunchOptions& options_;
  const std::vector<pid_t> children_before_ = detail::list_children();
  const detail::SubReaper reaper_;
  StopSignals signals_;
  Descriptor port_;
  detail::Terminal output_{STDOUT_FILENO, [this] { return is_over(); }};
  detail::Terminal error_{STDERR_FILENO, [this] { return is_over(); }};
  std::vector<Streams> streams_;
  std::vector<detail::RankCommand> commands_;
  std::vector<Descriptor> child_ends_;
  std::vector<detail::RankEnd> ends_;  // in the order of time
  int start_error_ = 0;
  bool is_done_ = false;
  bool lost_guardian_ = false;
  mutable std::optional<Clock::time_point> over_at_;
};

/// Once told to stop, the launcher does not wait for a reader for longer than for its ranks.
bool Supervisor::is_over() const {
  constexpr Milliseconds kMargin{1000};
  StopSignals::send_again();  // the wait for a reader may be a long one
  if (StopSignals::stopped_by() == 0) {
    return false;
  }
  over_at_ = over_at_.value_or(Clock::now() + options_.grace + kMargin);
  return Clock::now() >= *over_at_;
}

void Supervisor::prepare() {
  const std::string program = detail::find_program(options_.command.front());
  const std::optional<rlimit> open_files = detail::raise_open_files(options_.ranks);
  port_ = hold_port(options_.master_port);
  child_ends_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int no_input = child_ends_.back().get();
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    FSDP_CHECK(!error, ErrorCode::kInvalidArgument, "the directory for logs '", options_.log_dir,
               "' cannot be made: ", error.message());
  }
  streams_.resize(static_cast<std::size_t>(options_.ranks));
  const std::vector<cpu_set_t> cores =
      options_.pins_ranks ? detail::divide_cores(options_.ranks) : std::vector<cpu_set_t>();
  for (int number = 0; number < options_.ranks; ++number) {
    std::shared_ptr<detail::LogFile> log;
    if (!options_.log_dir.empty()) {
      log = std::make_shared<detail::LogFile>(options_.log_dir + "/rank-" + std::to_string(number) +
                                              ".log");
    }
    Streams& streams = streams_[static_cast<std::size_t>(number)];
    detail::RankCommand& command = commands_.emplace_back();
    command.arguments = options_.command;
    command.program = program;
    command.environment = detail::make_environment(options_, number, net::port_of(port_.get()));
    command.input = number == 0 && !detail::is_foreign_terminal(STDIN_FILENO) ? -1 : no_input;
    command.ignores_hangup = signals_.ignores_hangup();
    command.open_files = open_files;
    if (!cores.empty()) {
      command.cores = cores[static_cast<std::size_t>(number)];
    }
    for (const int terminal : {STDOUT_FILENO, STDERR_FILENO}) {
      const bool is_output = terminal == STDOUT_FILENO;
      Descriptor end = route(number, terminal, log, is_output ? streams.output : streams.error);
      (is_output ? command.output : command.error) = end.get();
      child_ends_.push_back(std::move(end));
    }
  }
}

/// The end for the rank of a pipe to the launcher; none where the rank inherits a terminal.
Descriptor Supervisor::route(int number, int terminal, const std::shared_ptr<detail::LogFile>& log,
                             detail::RankOutput& output) {
  const bool is_plain = number == 0 && options_.rank_zero == RankZeroOutput::kPlain;
  const bool is_on_terminal = is_plain && ::isatty(terminal) != 0;
  // Standard error always goes through: its last lines are part of the report.
  if (is_on_terminal && terminal == STDOUT_FILENO && !log) {
    return {};
  }
  std::array<int, 2> pipe{};
  FSDP_CHECK(::pipe2(pipe.data(), O_CLOEXEC) == 0, ErrorCode::kIo, "cannot make a pipe for rank ",
             number, ": ", std::strerror(errno));
  const bool is_shown = number == 0 || !options_.quiet_ranks;
  output = detail::RankOutput(
      Descriptor(pipe[0]),
      {.terminal = is_shown ? (terminal == STDOUT_FILENO ? &output_ : &error_) : nullptr,
       .prefix = is_plain ? "" : "[" + std::to_string(number) + "] ",
       .is_immediate = is_on_terminal,
       .log = log});
  return Descriptor(pipe[1]);
}

void Supervisor::move_output() {
  for (Streams& streams : streams_) {
    streams.output.forward();
    streams.error.forward();
  }
  if (output_.is_broken() || error_.is_broken()) {
    StopSignals::stop(SIGPIPE, SIGTERM);
  }
}

void Supervisor::wait_for_news(int channel) {
  std::vector<pollfd> descriptors{{channel, POLLIN, 0}};
  for (const Streams& streams : streams_) {
    for (const int source : {streams.output.source(), streams.error.source()}) {
      if (source >= 0) {
        descriptors.push_back({source, POLLIN, 0});
      }
    }
  }
  constexpr int kTickMilliseconds = 500;
  ::poll(descriptors.data(), descriptors.size(), kTickMilliseconds);
  StopSignals::send_again();
}

void Supervisor::take(const GuardianEvent& event) {
  const std::string name = "rank " + std::to_string(event.rank);
  switch (event.kind) {
    case GuardianEvent::Kind::kNotStarted: start_error_ = event.value; break;
    case GuardianEvent::Kind::kEnded: {
      const int signal = WIFSIGNALED(event.value) ? WTERMSIG(event.value) : 0;
      ends_.push_back({.rank = event.rank,
                       .exit_code = signal != 0 ? 128 + signal : WEXITSTATUS(event.value),
                       .signal = signal,
                       .was_asked_to_stop = event.was_asked_to_stop});
      break;
    }
    case GuardianEvent::Kind::kStopped:
      say(name + " stands still, stopped by signal " + std::to_string(event.value) +
          "; kill -CONT " + std::to_string(event.pid) + " lets it go on");
      break;
    case GuardianEvent::Kind::kLeftOver:
      if (event.rank >= 0) {
        ends_.push_back({.rank = event.rank,
                         .exit_code = 128 + SIGKILL,
                         .was_asked_to_stop = true,
                         .is_left_over = true});
      }
      say("process " + std::to_string(event.pid) + " could not be killed");
      break;
    case GuardianEvent::Kind::kReady: break;  // taken by the Guardian
    case GuardianEvent::Kind::kDone: is_done_ = true; break;
  }
}

void Supervisor::supervise() {
  detail::Guardian guardian(commands_, options_.grace);
  child_ends_.clear();
  StopSignals::connect(&guardian);
  while (!is_done_ && !guardian.is_lost()) {
    wait_for_news(guardian.channel());
    move_output();
    while (const auto event = guardian.receive()) {
      take(*event);
    }
  }
  lost_guardian_ = !is_done_;
  StopSignals::connect(nullptr);
}

int Supervisor::conclude() {
  if (lost_guardian_) {
    detail::end_descendants(children_before_, Milliseconds(5000));
  }
  for (Streams& streams : streams_) {
    streams.output.finish();
    streams.error.finish();
  }
  for (detail::RankEnd& end : ends_) {
    end.last_lines = streams_[static_cast<std::size_t>(end.rank)].error.last_lines();
  }
  FSDP_CHECK(start_error_ == 0, ErrorCode::kIo, "cannot run '", options_.command.front(),
             "': ", std::strerror(start_error_));
  const int stopped_by = StopSignals::stopped_by();
  error_.write(detail::describe_ends(ends_, stopped_by));
  if (lost_guardian_) {
    say("the process that guards the ranks was killed, and the ranks with it");
    return 128 + SIGKILL;
  }
  if (stopped_by != 0) {
    return 128 + stopped_by;
  }
  const auto first = detail::find_first_failure(ends_);
  // Nobody may take a job for done whose output is not there.
  bool has_lost = output_.has_lost();
  for (const Streams& streams : streams_) {
    has_lost = has_lost || streams.output.has_lost() || streams.error.has_lost();
  }
  return first ? ends_[*first].exit_code : has_lost ? 1 : 0;
}

int Supervisor::run() {
  prepare();
  supervise();
  return conclude();
}

}  // namespace

int run(const LaunchOptions& options) {
  FSDP_CHECK(options.ranks >= 1, ErrorCode::kInvalidArgument, "cannot run ", options.ranks,
             " ranks, must be at least 1");
  FSDP_CHECK(!options.command.empty(), ErrorCode::kInvalidArgument, "there is no program to run");
  detail::open_standard_streams();
  return Supervisor(options).run();
}

}  // namespace fsdp::launch
