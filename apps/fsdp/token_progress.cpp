// SPDX-License-Identifier: Apache-2.0
#include "token_progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fsdp::apps {

using std::chrono::milliseconds;
using std::chrono::seconds;

TokenProgress::TokenProgress(std::string doing)
    : doing_(std::move(doing)),
      is_terminal_(::isatty(STDERR_FILENO) != 0),
      next_(begin_ + seconds(1)) {}

TokenProgress::~TokenProgress() {
  if (is_open_) {
    std::fputc('\n', stderr);
  }
}

void TokenProgress::show(const data::TokenizeProgress& now) {
  const auto time = Clock::now();
  if (time < next_) {
    return;
  }
  next_ = time + (is_terminal_ ? milliseconds(200) : milliseconds(10'000));
  const double elapsed = std::chrono::duration<double>(time - begin_).count();
  const auto done = static_cast<double>(now.bytes_done);
  const double rate = done / elapsed;
  const double left = std::max(0.0, static_cast<double>(now.bytes) - done) / std::max(rate, 1.0);
  std::fprintf(stderr, "%s%s: %3.0f %% of %.1f MB, %lld tokens, %.1f MB/s, %.0f s left%s",
               is_terminal_ ? "\r" : "", doing_.c_str(),
               100 * done / std::max(1.0, static_cast<double>(now.bytes)),
               static_cast<double>(now.bytes) / 1e6, static_cast<long long>(now.tokens), rate / 1e6,
               left, is_terminal_ ? "   " : "\n");
  std::fflush(stderr);
  is_open_ = is_terminal_;
}

}  // namespace fsdp::apps
