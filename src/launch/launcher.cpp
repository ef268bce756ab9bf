// SPDX-License-Identifier: Apache-2.0
#include "fsdp/launch/launcher.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "fsdp/base/error.hpp"
#include "launch/descendants.hpp"
#include "launch/rank_process.hpp"

extern char** environ;

namespace fsdp::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMilliseconds = 100;

// The only thing a signal handler may touch: the last signal that asked the launcher to stop.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember_signal(int signal) { stop_signal.store(signal); }

/// SIGINT, SIGTERM and SIGHUP are remembered while this lives, SIGHUP unless nohup has it ignored;
/// orphans of the ranks become our children, so that none can escape.
class Guardian {
 public:
  Guardian() {
    stop_signal.store(0);
    struct sigaction action{};
    action.sa_handler = remember_signal;
    ::sigaction(SIGINT, &action, &old_interrupt_);
    ::sigaction(SIGTERM, &action, &old_terminate_);
    ::sigaction(SIGHUP, nullptr, &old_hangup_);
    if (old_hangup_.sa_handler != SIG_IGN) {
      ::sigaction(SIGHUP, &action, nullptr);
    }
    struct sigaction ignore{};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, &old_pipe_);
    ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;
  ~Guardian() {
    ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
    ::sigaction(SIGINT, &old_interrupt_, nullptr);
    ::sigaction(SIGTERM, &old_terminate_, nullptr);
    ::sigaction(SIGHUP, &old_hangup_, nullptr);
    ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  }

 private:
  struct sigaction old_interrupt_{};
  struct sigaction old_terminate_{};
  struct sigaction old_hangup_{};
  struct sigaction old_pipe_{};
  int was_subreaper_ = 0;
};

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(std::exchange(other.value_, -1));
    return *this;
  }
  ~Descriptor() { reset(); }
  int get() const { return value_; }
  void reset(int value = -1) {
    if (value_ >= 0) {
      ::close(value_);
    }
    value_ = value;
  }

 private:
  int value_ = -1;
};

std::uint16_t listen_on_free_port(Descriptor& listener) {
  listener.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  FSDP_CHECK(listener.get() >= 0 && ::bind(listener.get(), generic, length) == 0 &&
                 ::listen(listener.get(), SOMAXCONN) == 0 &&
                 ::getsockname(listener.get(), generic, &length) == 0,
             ErrorCode::kIo, "cannot listen on 127.0.0.1: ", std::strerror(errno));
  return ntohs(address.sin_port);
}

/// One rank under supervision.
struct Rank {
  int number = 0;
  pid_t pid = -1;
  Descriptor process;  // readable once the rank has ended: wakes the poll at the first to fail
  bool ended = false;
  int exit_code = 0;           // 128 + signal
  int signal = 0;              // that ended it; a program may exit with such a code by itself
  bool asked_to_stop = false;  // its end is a consequence, not a cause
  detail::LineForwarder output;
  detail::LineForwarder error;
};

std::string describe_end(const Rank& rank) {
  if (rank.signal != 0) {
    return "was ended by signal " + std::to_string(rank.signal) + " (" + ::strsignal(rank.signal) +
           ")";
  }
  return "exited with code " + std::to_string(rank.exit_code);
}

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options) : options_(options) {}
  ~Supervisor() { end_everything(); }

  void start();
  int supervise();

 private:
  std::vector<std::string> make_environment(int rank, std::uint16_t port, int socket) const;
  void forward_output(int timeout_ms);
  void reap();
  void stop_all(int signal);
  void end_everything();
  void report() const;
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }

  const LaunchOptions& options_;
  const std::vector<pid_t> children_before_ = detail::list_children();
  Guardian guardian_;
  std::vector<Rank> ranks_;
  std::optional<Clock::time_point> kill_at_;
  std::vector<int> order_of_failure_;
  int stopped_by_ = 0;
};

std::vector<std::string> Supervisor::make_environment(int rank, std::uint16_t port,
                                                      int socket) const {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  variables.erase("FSDP_STORE_FD");
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(options_.ranks);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  if (socket >= 0) {
    variables["FSDP_STORE_FD"] = std::to_string(socket);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (options_.threads > 0) {
    variables["OMP_NUM_THREADS"] = std::to_string(options_.threads);
  } else {
    variables.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options_.ranks)));
  }
  for (const auto& [name, value] : options_.environment) {
    variables[name] = value;
  }
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    entries.emplace_back(name).append("=").append(value);
  }
  return entries;
}

void Supervisor::start() {
  const std::string program = detail::find_program(options_.command.front());
  Descriptor listener;
  const std::uint16_t port = listen_on_free_port(listener);
  for (int number = 0; number < options_.ranks; ++number) {
    const bool is_plain = number == 0 && options_.rank_zero == RankZeroOutput::kPlain;
    const std::string prefix = is_plain ? "" : "[" + std::to_string(number) + "] ";
    Rank& rank = ranks_.emplace_back();
    rank.number = number;
    detail::RankCommand command{.arguments = options_.command,
                                .environment = {},
                                .program = program,
                                .inherited_socket = number == 0 ? listener.get() : -1,
                                .output = -1,
                                .error = -1};
    command.environment = make_environment(number, port, command.inherited_socket);
    std::array<Descriptor, 2> child_ends;
    const auto redirect = [&](int terminal, Descriptor& child_end, detail::LineForwarder& lines) {
      if (is_plain && ::isatty(terminal)) {
        return -1;
      }
      std::array<int, 2> pipe{};
      FSDP_CHECK(::pipe2(pipe.data(), O_CLOEXEC) == 0, ErrorCode::kIo,
                 "cannot make a pipe: ", std::strerror(errno));
      child_end.reset(pipe[1]);
      lines = detail::LineForwarder(pipe[0], terminal, prefix);
      return pipe[1];
    };
    command.output = redirect(STDOUT_FILENO, child_ends[0], rank.output);
    command.error = redirect(STDERR_FILENO, child_ends[1], rank.error);
    rank.ended = true;  // until it runs
    rank.pid = detail::start_process(command);
    rank.ended = false;
    rank.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, rank.pid, 0)));
  }
}

void Supervisor::forward_output(int timeout_ms) {
  std::vector<pollfd> descriptors;
  for (const Rank& rank : ranks_) {
    for (const int source : {rank.output.source(), rank.error.source(), rank.process.get()}) {
      if (source >= 0) {
        descriptors.push_back({source, POLLIN, 0});
      }
    }
  }
  ::poll(descriptors.data(), descriptors.size(), timeout_ms);
  for (Rank& rank : ranks_) {
    rank.output.forward();
    rank.error.forward();
  }
}

void Supervisor::reap() {
  for (Rank& rank : ranks_) {
    int status = 0;
    if (rank.ended || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) {
      continue;
    }
    rank.ended = true;
    rank.process.reset();
    rank.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    rank.exit_code = rank.signal != 0 ? 128 + rank.signal : WEXITSTATUS(status);
    if (rank.exit_code != 0) {
      order_of_failure_.push_back(rank.number);
    }
  }
}

void Supervisor::stop_all(int signal) {
  for (Rank& rank : ranks_) {
    if (!rank.ended) {
      rank.asked_to_stop = true;
      ::kill(-rank.pid, signal);
    }
  }
  if (!kill_at_) {
    kill_at_ = Clock::now() + options_.grace;
  }
}

void Supervisor::end_everything() {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0 && !rank.ended) {
      ::kill(-rank.pid, SIGKILL);
    }
  }
  detail::end_descendants(children_before_);
}

int Supervisor::supervise() {
  bool killed = false;
  while (!all_ended()) {
    forward_output(kPollMilliseconds);
    reap();
    if (const int signal = stop_signal.exchange(0)) {
      stopped_by_ = signal;
      stop_all(signal);
    } else if (!order_of_failure_.empty() && !kill_at_) {
      stop_all(SIGTERM);
    }
    if (kill_at_ && !killed && Clock::now() >= *kill_at_) {
      killed = true;
      stop_all(SIGKILL);
    }
  }
  end_everything();
  forward_output(0);
  for (Rank& rank : ranks_) {
    rank.output.finish();
    rank.error.finish();
  }
  report();
  if (stopped_by_ != 0) {
    return 128 + stopped_by_;
  }
  return order_of_failure_.empty()
             ? 0
             : ranks_[static_cast<std::size_t>(order_of_failure_.front())].exit_code;
}

void Supervisor::report() const {
  std::string text;
  for (const int number : order_of_failure_) {
    const Rank& rank = ranks_[static_cast<std::size_t>(number)];
    text += "fsdp run: rank " + std::to_string(number) + " " + describe_end(rank);
    if (rank.asked_to_stop) {
      text += stopped_by_ != 0 ? ", told to stop"
                               : ", told to stop after rank " +
                                     std::to_string(order_of_failure_.front()) + " failed";
    }
    text += "\n";
  }
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

int run(const LaunchOptions& options) {
  FSDP_CHECK(options.ranks >= 1, ErrorCode::kInvalidArgument, "cannot run ", options.ranks,
             " ranks, must be at least 1");
  FSDP_CHECK(!options.command.empty(), ErrorCode::kInvalidArgument, "there is no program to run");
  Supervisor supervisor(options);
  supervisor.start();
  return supervisor.supervise();
}

}  // namespace fsdp::launch
