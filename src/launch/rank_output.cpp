// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_output.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::launch::detail {
namespace {

/// "frame #12: ...", or "#12 ... from ...": how LibTorch writes a stack.
bool is_stack_frame(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  constexpr std::string_view kFrame = "frame ";
  const bool has_word = line.starts_with(kFrame);
  line.remove_prefix(has_word ? kFrame.size() : 0);
  return line.size() > 1 && line[0] == '#' && line[1] >= '0' && line[1] <= '9' &&
         (has_word || line.find(" from ") != std::string_view::npos);
}

}  // namespace

LogFile::LogFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  FSDP_CHECK(file_.get() >= 0, ErrorCode::kInvalidArgument, "the log file '", path,
             "' cannot be written: ", std::strerror(errno));
}

void LogFile::write(std::string_view text) {
  while (!text.empty() && file_.get() >= 0) {
    const ssize_t count = ::write(file_.get(), text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      std::fprintf(stderr, "fsdp run: the log file '%s' ends here: %s\n", path_.c_str(),
                   std::strerror(errno));
      file_.reset();
    }
  }
}

void LastLines::add(std::string_view line) {
  // Of a progress line that was written over and over, the last state counts.
  const auto carriage_return = line.find_last_not_of('\r') == std::string_view::npos
                                   ? std::string_view::npos
                                   : line.rfind('\r', line.find_last_not_of('\r'));
  if (carriage_return != std::string_view::npos) {
    line.remove_prefix(carriage_return + 1);
  }
  if (is_stack_frame(line)) {
    if (frames_++ > 0) {
      lines_.pop_back();
    }
    lines_.push_back("(" + std::to_string(frames_) + " frames of a stack)");
  } else {
    frames_ = 0;
    lines_.emplace_back(line.substr(0, kBytes));
  }
  if (lines_.size() > kLines) {
    lines_.pop_front();
  }
}

RankOutput::RankOutput(base::Descriptor source, OutputRoute route)
    : source_(std::move(source)), route_(std::move(route)) {
  ::fcntl(source_.get(), F_SETFL, ::fcntl(source_.get(), F_GETFL) | O_NONBLOCK);
}

bool RankOutput::forward() {
  // One piece a turn: a rank that writes without end must not hold up the others.
  std::array<char, 65536> buffer;
  while (source_.get() >= 0) {
    const ssize_t count = ::read(source_.get(), buffer.data(), buffer.size());
    if (count > 0) {
      take({buffer.data(), static_cast<std::size_t>(count)});
      return true;
    }
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    end_last_line();
    source_.reset();
  }
  return false;
}

void RankOutput::finish() {
  while (forward()) {
  }
  end_last_line();
  source_.reset();
}

void RankOutput::take(std::string_view bytes) {
  constexpr std::size_t kLongest = 65536;
  if (route_.is_immediate && route_.terminal != nullptr) {
    route_.terminal->write(bytes);
  }
  partial_ += bytes;
  const auto last_end = partial_.rfind('\n');
  if (last_end != std::string::npos) {
    emit(std::string_view(partial_).substr(0, last_end + 1));
    partial_.erase(0, last_end + 1);
  }
  if (partial_.size() > kLongest) {
    emit(partial_);
    partial_.clear();
  }
}

/// Whole lines, or a piece of a line that is too long.
void RankOutput::emit(std::string_view lines) {
  if (route_.log) {
    route_.log->write(lines);
  }
  std::string shown;
  while (!lines.empty()) {
    const auto end = lines.find('\n');
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
    last_lines_.add(line);
    shown.append(route_.prefix).append(line);
    if (end != std::string_view::npos || !route_.prefix.empty()) {
      shown += '\n';
    }
  }
  if (!route_.is_immediate && route_.terminal != nullptr) {
    route_.terminal->write(shown);
  }
}

void RankOutput::end_last_line() {
  if (!partial_.empty()) {
    if (route_.is_immediate && route_.terminal != nullptr) {
      route_.terminal->write("\n");
    }
    partial_ += '\n';
    emit(partial_);
    partial_.clear();
  }
}

}  // namespace fsdp::launch::detail
