// SPDX-License-Identifier: Apache-2.0
#include "e2e/program.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace fsdp::test {
namespace {

double number_after(const std::string& line, const std::string& key) {
  const auto at = line.find("\"" + key + "\":");
  return at == std::string::npos ? std::numeric_limits<double>::quiet_NaN()
                                 : std::strtod(line.c_str() + at + key.size() + 3, nullptr);
}

}  // namespace

std::string fsdp_program() {
  const char* binary = std::getenv("FSDP_BINARY");
  if (binary == nullptr || *binary == '\0') {
    throw std::runtime_error("FSDP_BINARY does not name the program: run this test through ctest");
  }
  return binary;
}

CommandResult run_fsdp(const std::vector<std::string>& arguments) {
  return run_command(std::vector<std::string>{fsdp_program()} + arguments,
                     {{"OMP_NUM_THREADS", "1"}});
}

std::vector<std::string> tiny_training(const std::string& data, const std::string& out) {
  return {"train",          "--preset", "tiny",    "--data", data,       "--out", out,
          "--global-batch", "8",        "--steps", "3",      "--sample", "10"};
}

std::vector<std::string> operator+(std::vector<std::string> first,
                                   const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<std::string> laid_over(const std::vector<std::string>& first,
                                   const std::vector<std::string>& second) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool is_again = first[i].starts_with("--") &&
                          std::find(second.begin(), second.end(), first[i]) != second.end();
    if (is_again) {
      ++i;  // its value goes, too
    } else {
      kept.push_back(first[i]);
    }
  }
  return kept + second;
}

std::vector<LogLine> read_log(const std::string& path) {
  std::vector<LogLine> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back({.step = number_after(line, "step"),
                     .loss = number_after(line, "loss"),
                     .grad_norm = number_after(line, "grad_norm"),
                     .validation_loss = number_after(line, "val_loss")});
  }
  return lines;
}

std::string sample_text(std::size_t bytes) {
  static const char* const kWords[] = {"and ", "the ", "light ", "of ", "day ", "was ", "good.\n"};
  std::string text;
  for (unsigned state = 1; text.size() < bytes;) {
    state = state * 1664525u + 1013904223u;
    text += kWords[(state >> 16) % std::size(kWords)];
  }
  text.resize(bytes);
  return text;
}

std::string python_with(const std::string& modules) {
  const char* named = std::getenv("FSDP_TEST_PYTHON");
  for (const char* python :
       {named == nullptr ? "" : named, FSDP_VENV_PYTHON, FSDP_PEERS_PYTHON, "python3"}) {
    if (*python != '\0' && run_command({python, "-c", "import " + modules}).code == 0) {
      return python;
    }
  }
  return "";
}

}  // namespace fsdp::test
