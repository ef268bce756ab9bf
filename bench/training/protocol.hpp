// SPDX-License-Identifier: Apache-2.0
/// How the training programs of bench/ talk to the harness (bench/harness.py): a JSON line on
/// standard output at the end of each phase, then a wait for a line on standard input. While all
/// ranks wait, the harness samples their memory; its answer starts all of them at once.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <vector>

namespace bench {

/// Ends a phase. `line` is a JSON object. By hand: `yes '' | bench_train ...`.
inline void end_phase(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  for (int c = 0; c != '\n' && c != EOF;) {
    c = std::getchar();
  }
}

/// Processor time of this process so far, all threads together: on a busy machine steadier than the
/// wall's.
inline double cpu_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

/// Milliseconds of each of `steps` calls.
template <class Step>
std::vector<double> times_ms(int steps, Step&& step) {
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count());
  }
  return times;
}

}  // namespace bench
