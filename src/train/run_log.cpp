// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.hpp"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fsdp/base/error.hpp"

namespace fsdp::train::detail {
namespace {

std::string number(double value) {
  if (!std::isfinite(value)) {
    return "null";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// The step of a line; nothing for anything else.
std::optional<std::int64_t> step_of(const std::string& line) {
  long long step = 0;
  return std::sscanf(line.c_str(), "{\"step\":%lld,", &step) == 1
             ? std::optional<std::int64_t>(step)
             : std::nullopt;
}

/// Bytes at the begin of a log that are whole lines of steps up to `step`.
std::uintmax_t bytes_up_to(const std::string& path, std::int64_t step) {
  std::ifstream file(path, std::ios::binary);
  std::uintmax_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof(); bytes += line.size() + 1) {
    const auto found = step_of(line);
    if (found && *found > step) {
      break;
    }
  }
  return bytes;
}

}  // namespace

std::optional<double> logged_loss(const std::string& path, std::int64_t step) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto loss = line.find("\"loss\":");
    if (step_of(line) == step && loss != std::string::npos) {
      return std::strtod(line.c_str() + loss + 7, nullptr);
    }
  }
  return std::nullopt;
}

std::string to_json(const StepReport& report) {
  std::string line =
      "{\"step\":" + std::to_string(report.step) + ",\"loss\":" + number(report.loss) +
      ",\"grad_norm\":" + number(report.grad_norm) + ",\"lr\":" + number(report.lr) +
      ",\"tokens_per_s\":" + number(report.tokens_per_s) +
      ",\"seconds\":" + number(report.seconds) + ",\"wait_s\":" + number(report.wait_seconds) +
      ",\"peak_bytes\":" + std::to_string(report.peak_bytes);
  if (report.validation_loss) {
    line += ",\"val_loss\":" + number(*report.validation_loss);
  }
  return line + "}";
}

RunLog::RunLog(const std::string& path, std::int64_t steps_to_keep) : path_(path) {
  if (path.empty()) {
    return;
  }
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  if (is_file) {
    // Cut, not written anew: a full disk must not cost what is there.
    const auto kept = steps_to_keep > 0 ? bytes_up_to(path, steps_to_keep) : 0;
    std::filesystem::resize_file(path, kept, error);
    FSDP_CHECK(!error, ErrorCode::kIo, "'", path, "' cannot be cut to ", kept,
               " bytes: ", error.message());
  }
  file_.reset(std::fopen(path.c_str(), "a"));
  FSDP_CHECK(file_, ErrorCode::kIo, "'", path, "' cannot be written: ", std::strerror(errno));
}

void RunLog::write(const StepReport& report) {
  if (file_) {
    const bool written = std::fputs((to_json(report) + "\n").c_str(), file_.get()) >= 0 &&
                         std::fflush(file_.get()) == 0;
    FSDP_CHECK(written, ErrorCode::kIo, "'", path_, "' cannot be written: ", std::strerror(errno));
  }
}

}  // namespace fsdp::train::detail
