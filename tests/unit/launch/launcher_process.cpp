// SPDX-License-Identifier: Apache-2.0
#include "launcher_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace fsdp::launch::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kVariable = "FSDP_TEST_JOB";

/// Living processes: what has ended and was not yet reaped has no environment any more.
std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name.front())) &&
        read_file(entry.path() / "environ").find(variable) != std::string::npos) {
      found.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return found;
}

}  // namespace

pid_t first_child_of(pid_t parent) {
  const std::string name = std::to_string(parent);
  pid_t found = 0;
  eventually([&] {
    found = std::atoi(read_file("/proc/" + name + "/task/" + name + "/children").c_str());
    return found > 0;
  });
  return found;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

LaunchOptions script(int ranks, const std::string& text) {
  return {
      .ranks = ranks, .command = {"/bin/sh", "-c", text}, .grace = std::chrono::milliseconds(1000)};
}

LauncherProcess::LauncherProcess(LaunchOptions options, const std::function<void()>& before) {
  options.environment.emplace_back(kVariable, directory_.path());
  const std::string output = directory_.path("output");
  pid_ = ::fork();
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
  if (pid_ > 0) {
    ::setpgid(pid_, pid_);
    return;
  }
  ::setpgid(0, 0);
  const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  if (before) {
    before();
  }
  try {
    ::_exit(run(options));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(2);
  }
}

LauncherProcess::~LauncherProcess() {
  if (code_ < 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  for (const pid_t pid : left_over(std::chrono::seconds(5))) {
    ::kill(pid, SIGKILL);
  }
}

pid_t LauncherProcess::second_guard() const { return first_child_of(pid_); }

pid_t LauncherProcess::guardian() const { return first_child_of(second_guard()); }

int LauncherProcess::wait(std::chrono::milliseconds limit) {
  eventually(
      [&] {
        int status = 0;
        if (code_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
          code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        return code_ >= 0;
      },
      limit);
  return code_;
}

std::string LauncherProcess::output() const { return read_file(directory_.path("output")); }

bool LauncherProcess::says(const std::string& text) const {
  return eventually([&] { return output().find(text) != std::string::npos; });
}

std::vector<pid_t> LauncherProcess::left_over(std::chrono::milliseconds limit) const {
  const std::string variable = std::string(kVariable) + "=" + directory_.path();
  std::vector<pid_t> left;
  eventually(
      [&] {
        left = processes_with(variable);
        return left.empty();
      },
      limit);
  return left;
}

}  // namespace fsdp::launch::test
