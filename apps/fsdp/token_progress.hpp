// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "fsdp/data/tokenize.hpp"

namespace fsdp::apps {

/// How far a tokenization is, on standard error: nothing in the first second, then one line that
/// is written over on a terminal, and a line every ten seconds elsewhere.
class TokenProgress {
 public:
  /// `doing` is what the lines begin with.
  explicit TokenProgress(std::string doing);
  ~TokenProgress();
  TokenProgress(const TokenProgress&) = delete;
  TokenProgress& operator=(const TokenProgress&) = delete;

  void show(const data::TokenizeProgress& now);

 private:
  using Clock = std::chrono::steady_clock;

  std::string doing_;
  bool is_terminal_;
  bool is_open_ = false;  ///< a line stands without its end
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;
};

}  // namespace fsdp::apps
