// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
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

/// The whole lines of a log that belong to steps 1 to `step`, each once.
std::string lines_up_to(const std::string& path, std::int64_t step) {
  std::ifstream file(path);
  std::string kept;
  std::int64_t last = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    long long number = 0;
    if (std::sscanf(line.c_str(), "{\"step\":%lld,", &number) == 1 && number == last + 1 &&
        number <= step) {
      kept += line + "\n";
      last = number;
    }
  }
  return kept;
}

}  // namespace

std::string to_json(const StepReport& report) {
  std::string line = "{\"step\":" + std::to_string(report.step) +
                     ",\"loss\":" + number(report.loss) +
                     ",\"grad_norm\":" + number(report.grad_norm) + ",\"lr\":" + number(report.lr) +
                     ",\"tokens_per_s\":" + number(report.tokens_per_s);
  if (report.validation_loss) {
    line += ",\"val_loss\":" + number(*report.validation_loss);
  }
  return line + "}";
}

RunLog::RunLog(const std::string& path, std::int64_t steps_to_keep) : path_(path) {
  if (path.empty()) {
    return;
  }
  const std::string kept = steps_to_keep > 0 ? lines_up_to(path, steps_to_keep) : "";
  file_.reset(std::fopen(path.c_str(), "w"));
  const bool is_written =
      file_ && std::fputs(kept.c_str(), file_.get()) >= 0 && std::fflush(file_.get()) == 0;
  FSDP_CHECK(is_written, ErrorCode::kIo, "'", path, "' cannot be written: ", std::strerror(errno));
}

void RunLog::write(const StepReport& report) {
  if (file_) {
    const bool written = std::fputs((to_json(report) + "\n").c_str(), file_.get()) >= 0 &&
                         std::fflush(file_.get()) == 0;
    FSDP_CHECK(written, ErrorCode::kIo, "'", path_, "' cannot be written: ", std::strerror(errno));
  }
}

}  // namespace fsdp::train::detail
