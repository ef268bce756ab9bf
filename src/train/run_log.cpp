// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>

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

RunLog::RunLog(const std::string& path) : path_(path) {
  if (!path.empty()) {
    file_.reset(std::fopen(path.c_str(), "w"));
    FSDP_CHECK(file_, ErrorCode::kIo, "'", path, "' cannot be written: ", std::strerror(errno));
  }
}

void RunLog::write(const StepReport& report) {
  if (file_) {
    const bool written = std::fputs((to_json(report) + "\n").c_str(), file_.get()) >= 0 &&
                         std::fflush(file_.get()) == 0;
    FSDP_CHECK(written, ErrorCode::kIo, "'", path_, "' cannot be written: ", std::strerror(errno));
  }
}

}  // namespace fsdp::train::detail
