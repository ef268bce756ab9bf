// SPDX-License-Identifier: Apache-2.0
#include "comm/first_failure.hpp"

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fsdp::comm::detail {
namespace {
constexpr const char* kKey = "fsdp/first_failure";
constexpr Milliseconds kPollInterval{20};

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
}  // namespace

FailureBoard::FailureBoard(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

FailureBoard::~FailureBoard() = default;

std::string FailureBoard::publish(const std::string& text) noexcept {
  try {
    std::lock_guard lock(mutex_);
    const std::string line = "rank " + std::to_string(rank_) + ": " + text;
    const std::vector<std::uint8_t> absent;
    const std::vector<std::uint8_t> mine(line.begin(), line.end());
    return text_of(store_->compareSet(kKey, absent, mine));
  } catch (...) {
    return "";
  }
}

std::string FailureBoard::read(Milliseconds patience) noexcept {
  try {
    std::lock_guard lock(mutex_);
    const auto deadline = Clock::now() + patience;
    while (!store_->check({kKey})) {
      if (Clock::now() >= deadline) {
        return "";
      }
      std::this_thread::sleep_for(kPollInterval);
    }
    return text_of(store_->get(kKey));
  } catch (...) {
    return "";
  }
}

}  // namespace fsdp::comm::detail
