// SPDX-License-Identifier: Apache-2.0
#include "support/command.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace fsdp::test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

[[noreturn]] void become(const std::vector<std::string>& command,
                         const std::vector<std::pair<std::string, std::string>>& variables,
                         const std::string& out, const std::string& err) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  if (std::freopen(out.c_str(), "w", stdout) == nullptr ||
      std::freopen(err.c_str(), "w", stderr) == nullptr) {
    ::_exit(126);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

RunningCommand::RunningCommand(const std::vector<std::string>& command,
                               const std::vector<std::pair<std::string, std::string>>& variables)
    : child_(::fork()) {
  if (child_ < 0) {
    throw std::runtime_error("fork failed");
  }
  if (child_ == 0) {
    become(command, variables, directory_.path("out"), directory_.path("err"));
  }
}

RunningCommand::~RunningCommand() {
  if (!has_ended()) {
    send(SIGKILL);
    wait();
  }
}

void RunningCommand::send(int signal) const { ::kill(child_, signal); }

bool RunningCommand::has_ended() {
  has_ended_ = has_ended_ || ::waitpid(child_, &status_, WNOHANG) == child_;
  return has_ended_;
}

CommandResult RunningCommand::wait() {
  while (!has_ended_) {
    has_ended_ = ::waitpid(child_, &status_, 0) == child_ || errno != EINTR;
  }
  return {.code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_),
          .out = text_of(directory_.path("out")),
          .err = text_of(directory_.path("err"))};
}

CommandResult run_command(const std::vector<std::string>& command,
                          const std::vector<std::pair<std::string, std::string>>& variables) {
  return RunningCommand(command, variables).wait();
}

}  // namespace fsdp::test
