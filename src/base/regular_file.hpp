// SPDX-License-Identifier: Apache-2.0
/// Whether a path can be read from begin to end. Opening a named pipe waits for somebody to write
/// into it, and a directory opens but cannot be read.
#pragma once

#include <filesystem>
#include <string>

#include "fsdp/base/error.hpp"

namespace fsdp::base {

/// "a named pipe", "a directory", ...
inline const char* kind_text(std::filesystem::file_type type) {
  using Type = std::filesystem::file_type;
  switch (type) {
    case Type::directory: return "a directory";
    case Type::fifo: return "a named pipe";
    case Type::socket: return "a socket";
    case Type::block:
    case Type::character: return "a device";
    default: return "no regular file";
  }
}

/// Refuses what is there and is no regular file nor a link to one. What is not there, or cannot be
/// looked at, is told by who opens it. @throws Error kUnsupported naming the path and what it is
inline void need_regular(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  FSDP_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
             ErrorCode::kUnsupported, "'", path, "' is ", kind_text(status.type()),
             ", must be a regular file");
}

}  // namespace fsdp::base
