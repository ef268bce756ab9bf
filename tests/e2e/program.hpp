// SPDX-License-Identifier: Apache-2.0
/// The fsdp program under test, and what it leaves behind.
#pragma once

#include <string>
#include <vector>

#include "support/command.hpp"

namespace fsdp::test {

/// The path of the program that this build made.
std::string fsdp_program();

/// Runs it with `arguments`, one thread a rank.
CommandResult run_fsdp(const std::vector<std::string>& arguments);

/// A model small enough to train in a second.
std::vector<std::string> tiny_training(const std::string& data, const std::string& out);

/// Two lists of arguments, one after the other.
std::vector<std::string> operator+(std::vector<std::string> first,
                                   const std::vector<std::string>& second);

/// `first` without the options that `second` gives once more, then `second`: an option is given
/// once.
std::vector<std::string> laid_over(const std::vector<std::string>& first,
                                   const std::vector<std::string>& second);

/// The line of a run's log as numbers; NaN where it has none.
struct LogLine {
  double step, loss, grad_norm, validation_loss;
};
std::vector<LogLine> read_log(const std::string& path);

/// A text with some structure to learn, `bytes` long, always the same.
std::string sample_text(std::size_t bytes);

/// A Python that imports `modules` ("safetensors, numpy"): FSDP_TEST_PYTHON, the clone's own, those
/// of ./dev data tokenizers and of the benchmarks' peers, or the system's; empty when none does.
std::string python_with(const std::string& modules);

}  // namespace fsdp::test
