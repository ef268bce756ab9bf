// SPDX-License-Identifier: Apache-2.0
/// One rank as a child process, and the lines it writes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace fsdp::launch::detail {

/// Copies complete lines from a pipe to a descriptor with a prefix, so that lines of several ranks
/// do not mix.
class LineForwarder {
 public:
  LineForwarder() = default;
  LineForwarder(int source, int destination, std::string prefix);
  LineForwarder(LineForwarder&& other) noexcept;
  LineForwarder& operator=(LineForwarder&& other) noexcept;
  ~LineForwarder();

  /// The pipe to poll, -1 once it is at its end.
  int source() const { return source_; }
  /// Forwards what is there without blocking.
  void forward();
  /// Writes a last line without an end and closes the pipe.
  void finish();

 private:
  void write_line(const std::string& line);

  int source_ = -1;
  int destination_ = -1;
  std::string prefix_;
  std::string partial_;
};

/// How to start a rank.
struct RankCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< "NAME=value"
  std::string program;                   ///< path of the executable
  int inherited_socket = -1;             ///< kept open in the child
  int output = -1;                       ///< the child's standard output; -1 inherits
  int error = -1;                        ///< the child's standard error; -1 inherits
};

/// Starts the command in its own process group; it is killed when this process dies.
/// @throws Error kIo
pid_t start_process(const RankCommand& command);

/// The path of a program, looked up in PATH when it has no slash.
/// @throws Error kNotFound
std::string find_program(const std::string& name);

}  // namespace fsdp::launch::detail
