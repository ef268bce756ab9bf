// SPDX-License-Identifier: Apache-2.0
#include "train/progress.hpp"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "fsdp/memory/ledger.hpp"

namespace fsdp::train::detail {
namespace {

constexpr int kBarCells = 16;
constexpr int kPlainLines = 20;
/// Of a long run in a file.
constexpr std::chrono::seconds kLongestSilence{60};

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string significant(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

std::string bar(double fraction) {
  const int full = static_cast<int>(std::lround(fraction * kBarCells));
  std::string text;
  for (int cell = 0; cell < kBarCells; ++cell) {
    text += cell < full ? "█" : "░";
  }
  return text;
}

/// Cuts a UTF-8 text after `columns` characters.
std::string cut(const std::string& text, int columns) {
  int seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins_character = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins_character && seen++ == columns) {
      return text.substr(0, i);
    }
  }
  return text;
}

}  // namespace

std::string format_count(std::int64_t count) {
  std::string text = std::to_string(count);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string format_rate(double per_second) {
  if (per_second < 1000) {
    return fixed(per_second, 0);
  }
  return per_second < 1e6 ? fixed(per_second / 1e3, 1) + "k" : fixed(per_second / 1e6, 2) + "M";
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) {
    return std::to_string(hours) + "h " + std::to_string(minutes) + "m";
  }
  return (minutes > 0 ? std::to_string(minutes) + "m " : "") + std::to_string(whole % 60) + "s";
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

int terminal_width(std::FILE* stream) {
  winsize size{};
  const int file = ::fileno(stream);
  if (::isatty(file) == 0) {
    return 0;
  }
  return ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(std::FILE* stream, std::int64_t steps, int width)
    : stream_(stream), steps_(steps), width_(width), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { finish(); }

double Progress::seconds_left(std::int64_t step) const {
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
  return spent.count() / static_cast<double>(step) * static_cast<double>(steps_ - step);
}

std::string Progress::line(const StepReport& report, double seconds_left) const {
  const std::string total = std::to_string(steps_);
  std::string step = std::to_string(report.step);
  step.insert(0, total.size() - std::min(total.size(), step.size()), ' ');
  std::string text = "step " + step + "/" + total;
  if (width_ > 0) {
    text += " " + bar(static_cast<double>(report.step) / static_cast<double>(steps_));
  }
  text += "  loss " + fixed(report.loss, 4);
  text += "  val " + (validation_loss_ ? fixed(*validation_loss_, 4) : std::string("-"));
  text += "  " + format_rate(rate_) + " tok/s";
  text += "  grad " + fixed(report.grad_norm, 3);
  text += "  lr " + significant(report.lr);
  text += "  mem " + memory::format_bytes(peak_resident_bytes());
  text += "  left " + format_duration(seconds_left);
  return text;
}

void Progress::show(const StepReport& report) {
  if (report.validation_loss) {
    validation_loss_ = report.validation_loss;
  }
  // The rate a person reads follows the last dozen steps or so.
  rate_ = rate_ == 0 ? report.tokens_per_s : 0.9 * rate_ + 0.1 * report.tokens_per_s;
  const std::string text = line(report, seconds_left(report.step));
  if (width_ > 0) {
    std::fprintf(stream_, "\r%s\x1b[K", cut(text, width_ - 1).c_str());
    line_is_open_ = true;
  } else {
    const std::int64_t every = std::max<std::int64_t>(1, steps_ / kPlainLines);
    const auto now = std::chrono::steady_clock::now();
    if (report.step % every == 0 || report.step == 1 || report.step == steps_ ||
        report.validation_loss || now - shown_ >= kLongestSilence) {
      std::fprintf(stream_, "%s\n", text.c_str());
      shown_ = now;
    }
  }
  std::fflush(stream_);
}

void Progress::finish() {
  if (line_is_open_) {
    std::fputc('\n', stream_);
    std::fflush(stream_);
    line_is_open_ = false;
  }
}

}  // namespace fsdp::train::detail
