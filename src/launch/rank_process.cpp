// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "fsdp/base/error.hpp"

namespace fsdp::launch::detail {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

bool is_program(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

void set_signals(bool ignores_hangup) {
  // Handlers go with exec, ignored signals would stay.
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGCHLD, SIGUSR2}) {
    ::signal(signal, SIG_DFL);
  }
  ::signal(SIGHUP, ignores_hangup ? SIG_IGN : SIG_DFL);
  ::signal(SIGUSR1, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const RankCommand& command, char* const* arguments,
                         char* const* environment, pid_t parent, int status_pipe) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);
  }
  set_signals(command.ignores_hangup);
  if (command.open_files) {
    ::setrlimit(RLIMIT_NOFILE, &*command.open_files);
  }
  if (command.cores) {
    ::sched_setaffinity(0, sizeof(cpu_set_t), &*command.cores);  // refused: it runs anywhere
  }
  const std::array<int, 3> streams{command.input, command.output, command.error};
  for (int number = 0; number < 3; ++number) {
    if (streams[static_cast<std::size_t>(number)] >= 0) {
      ::dup2(streams[static_cast<std::size_t>(number)], number);
    }
  }
  ::execve(command.program.c_str(), arguments, environment);
  const int cause = errno;
  [[maybe_unused]] const auto written = ::write(status_pipe, &cause, sizeof(cause));
  ::_exit(127);
}

}  // namespace

StartedProcess start_process(const RankCommand& command) {
  const std::vector<char*> arguments = pointers_to(command.arguments);
  const std::vector<char*> environment = pointers_to(command.environment);
  std::array<int, 2> status{};
  if (::pipe2(status.data(), O_CLOEXEC) != 0) {
    return {.error = errno};
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become(command, arguments.data(), environment.data(), parent, status[1]);
  }
  const int fork_cause = errno;
  ::close(status[1]);
  int cause = 0;
  const ssize_t count = child > 0 ? ::read(status[0], &cause, sizeof(cause)) : 0;
  ::close(status[0]);
  if (child < 0) {
    return {.error = fork_cause};
  }
  ::setpgid(child, child);
  return {.pid = child, .error = count > 0 ? cause : 0};
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    FSDP_CHECK(is_program(name), ErrorCode::kNotFound, "the program '", name,
               "' does not exist or cannot be run");
    return name;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(candidate)) {
      return candidate;
    }
  }
  fail(ErrorCode::kNotFound, "the program '", name, "' is in no folder of PATH; write './", name,
       "' for one in this folder");
}

}  // namespace fsdp::launch::detail
