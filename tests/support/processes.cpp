// SPDX-License-Identifier: Apache-2.0
#include "support/processes.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>

namespace fsdp::test {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr const char* kRankVariable = "FSDP_TEST_RANK";
constexpr const char* kNameVariable = "FSDP_TEST_NAME";

/// A port that is nobody else's while it is held, and at which rank 0 may listen.
struct HeldPort {
  int descriptor = -1;
  int port = 0;
};

HeldPort hold_any_port() {
  HeldPort held{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  if (::bind(held.descriptor, generic, length) != 0 ||
      ::setsockopt(held.descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::getsockname(held.descriptor, generic, &length) != 0) {
    throw std::runtime_error(std::string("no port: ") + std::strerror(errno));
  }
  held.port = ntohs(address.sin_port);
  return held;
}

std::vector<std::string> make_environment(int rank, int size, const std::string& name,
                                          const HeldPort& held, const ProcessOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const char* inherited : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_OUTPUT",
                                "TORCHELASTIC_USE_AGENT_STORE"}) {
    variables.erase(inherited);
  }
  variables["RANK"] = variables["LOCAL_RANK"] = variables[kRankVariable] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(size);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(held.port);
  variables["OMP_NUM_THREADS"] = "1";
  variables[kNameVariable] = name;
  for (const auto& [key, value] : options.environment) {
    variables[key] = value;
  }
  std::vector<std::string> entries;
  for (const auto& [key, value] : variables) {
    entries.push_back(key + "=" + value);
  }
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

struct Child {
  pid_t pid = -1;
  int output = -1;
  bool ended = false;
};

Child start_copy(std::vector<std::string> environment) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::string> arguments{
      "/proc/self/exe",
      "--gtest_filter=" + std::string(test->test_suite_name()) + "." + test->name(),
      "--gtest_also_run_disabled_tests"};
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  // Nothing between fork and exec may allocate: other threads may hold the allocator's lock.
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(127);
    }
    ::setpgid(0, 0);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  return {pid, pipe[0], false};
}

/// Moves what the children wrote into the results until all have ended or the limit is reached.
void supervise(std::vector<Child>& children, std::vector<ProcessResult>& results,
               const ProcessOptions& options) {
  const auto start = Clock::now();
  std::size_t running = children.size();
  bool killed = false;
  std::optional<Disturbance> disturbance = options.disturbance;
  std::optional<std::size_t> stopped;
  while (running > 0) {
    if (disturbance && Clock::now() - start >= disturbance->after) {
      const auto rank = static_cast<std::size_t>(disturbance->rank);
      if (!children[rank].ended) {
        ::kill(children[rank].pid, disturbance->signal);
        stopped = disturbance->signal == SIGSTOP ? std::optional(rank) : std::nullopt;
      }
      disturbance.reset();
    }
    if (stopped && running == 1 && !children[*stopped].ended) {
      ::kill(children[*stopped].pid, SIGKILL);
    }
    std::vector<pollfd> descriptors;
    for (const Child& child : children) {
      descriptors.push_back({child.output, POLLIN, 0});
    }
    ::poll(descriptors.data(), descriptors.size(), 20);
    for (std::size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      int status = 0;
      const bool ends = !child.ended && ::waitpid(child.pid, &status, WNOHANG) == child.pid;
      std::array<char, 4096> buffer;
      ssize_t count = 0;
      while (child.output >= 0 &&
             (count = ::read(child.output, buffer.data(), buffer.size())) > 0) {
        results[i].output.append(buffer.data(), static_cast<std::size_t>(count));
      }
      if (child.output >= 0 && count == 0) {
        ::close(child.output);
        child.output = -1;
      }
      if (ends) {
        child.ended = true;
        --running;
        results[i].exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        results[i].duration = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
        results[i].killed_by_test = killed;
      }
    }
    if (!killed && Clock::now() - start > in_time(options.limit)) {
      killed = true;
      for (const Child& child : children) {
        if (!child.ended) {
          ::kill(-child.pid, SIGKILL);
        }
      }
    }
  }
  for (const Child& child : children) {
    ::kill(-child.pid, SIGKILL);  // what a rank may have left behind
    if (child.output >= 0) {
      ::close(child.output);
    }
  }
}

[[noreturn]] void run_as_rank(const std::function<void(int)>& body) {
  int code = 0;
  try {
    body(std::atoi(std::getenv(kRankVariable)));
    code = testing::Test::HasFailure() ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

std::chrono::milliseconds in_time(std::chrono::milliseconds limit) {
  return limit * FSDP_TEST_TIME_FACTOR;
}

std::vector<ProcessResult> run_processes(int size, const std::string& name,
                                         const std::function<void(int rank)>& body,
                                         const ProcessOptions& options) {
  if (const char* selected = std::getenv(kNameVariable)) {
    if (selected == name) {
      run_as_rank(body);
    }
    return std::vector<ProcessResult>(static_cast<std::size_t>(size));
  }
  const HeldPort held = hold_any_port();
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(start_copy(make_environment(rank, size, name, held, options)));
    ::fcntl(children.back().output, F_SETFL, O_NONBLOCK);
  }
  std::vector<ProcessResult> results(static_cast<std::size_t>(size));
  supervise(children, results, options);
  ::close(held.descriptor);
  return results;
}

}  // namespace fsdp::test
