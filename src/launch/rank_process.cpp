// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

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

/// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const RankCommand& command, char* const* arguments,
                         char* const* environment, pid_t parent, int status_pipe) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (command.output >= 0) {
    ::dup2(command.output, STDOUT_FILENO);
  }
  if (command.error >= 0) {
    ::dup2(command.error, STDERR_FILENO);
  }
  if (command.inherited_socket >= 0) {
    ::fcntl(command.inherited_socket, F_SETFD, 0);
  }
  ::execve(command.program.c_str(), arguments, environment);
  const int cause = errno;
  [[maybe_unused]] const auto written = ::write(status_pipe, &cause, sizeof(cause));
  ::_exit(127);
}

}  // namespace

LineForwarder::LineForwarder(int source, int destination, std::string prefix)
    : source_(source), destination_(destination), prefix_(std::move(prefix)) {
  ::fcntl(source_, F_SETFL, ::fcntl(source_, F_GETFL) | O_NONBLOCK);
}

LineForwarder::LineForwarder(LineForwarder&& other) noexcept { *this = std::move(other); }

LineForwarder& LineForwarder::operator=(LineForwarder&& other) noexcept {
  std::swap(source_, other.source_);
  std::swap(destination_, other.destination_);
  std::swap(prefix_, other.prefix_);
  std::swap(partial_, other.partial_);
  return *this;
}

LineForwarder::~LineForwarder() {
  if (source_ >= 0) {
    ::close(source_);
  }
}

void LineForwarder::forward() {
  std::array<char, 8192> buffer;
  while (source_ >= 0) {
    const ssize_t count = ::read(source_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (count <= 0) {
      finish();
      return;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = partial_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      write_line(partial_.substr(begin, end + 1 - begin));
    }
    partial_.erase(0, begin);
  }
}

void LineForwarder::finish() {
  if (!partial_.empty()) {
    write_line(partial_ + "\n");
    partial_.clear();
  }
  if (source_ >= 0) {
    ::close(source_);
    source_ = -1;
  }
}

void LineForwarder::write_line(const std::string& line) {
  const std::string text = prefix_ + line;
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(destination_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EAGAIN) {
      // Whoever shares the terminal or the pipe made it non-blocking: no line is lost for that.
      pollfd ready{destination_, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (count <= 0 && errno != EINTR) {
      return;
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

pid_t start_process(const RankCommand& command) {
  const std::vector<char*> arguments = pointers_to(command.arguments);
  const std::vector<char*> environment = pointers_to(command.environment);
  std::array<int, 2> status{};
  FSDP_CHECK(::pipe2(status.data(), O_CLOEXEC) == 0, ErrorCode::kIo,
             "cannot make a pipe: ", std::strerror(errno));
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
  FSDP_CHECK(child > 0, ErrorCode::kIo, "cannot start '", command.program,
             "': ", std::strerror(fork_cause));
  ::setpgid(child, child);
  FSDP_CHECK(count <= 0, ErrorCode::kIo, "cannot run '", command.program,
             "': ", std::strerror(cause));
  return child;
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
