// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/flight.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::checkpoint::detail {
namespace {

/// How often rank 0 looks for receipts.
constexpr auto kPoll = std::chrono::milliseconds(2);
/// When rank 0 says for whom it waits.
constexpr auto kEarly = std::chrono::milliseconds(1000);
/// Within the time that a launcher gives those that it stops.
constexpr auto kPatienceOfOthers = std::chrono::milliseconds(3000);
/// It looks at the signs of those that have left none in so many of these rounds once.
constexpr int kRoundsPerSign = 25;
/// In place of a count of copies: there will be no more.
constexpr std::size_t kBrokenOff = std::numeric_limits<std::size_t>::max();

}  // namespace

Flight::Flight(FlightPlan plan)
    : plan_(std::move(plan)),
      tensors_(plan_.index.tensors.size()),
      is_written_(written_.get_future()),
      is_committed_(committed_.get_future()),
      thread_([this] { run(); }) {}

Flight::~Flight() { give_up(); }

void Flight::run() {
  try {
    sign_.emplace(plan_.draft, plan_.rank);
    const auto sums = archive::write_pieces(
        plan_.draft, plan_.index.tensors, plan_.pieces,
        [this](const archive::Piece& piece) { await_copied(piece.range.tensor); });
    archive::write_receipt(plan_.draft, plan_.rank, sums);
    written_.set_value();
  } catch (const std::exception& error) {
    archive::write_failure(plan_.draft, "rank " + std::to_string(plan_.rank) + ": " + error.what());
    written_.set_exception(std::current_exception());
    committed_.set_exception(std::current_exception());
    return;
  }
  try {
    if (plan_.rank == 0) {
      commit_when_all_have_written();
    }
    committed_.set_value();
  } catch (...) {
    committed_.set_exception(std::current_exception());
  }
}

void Flight::commit_when_all_have_written() {
  std::optional<std::vector<archive::PieceSum>> sums;
  for (int round = 0; !(sums = archive::read_receipts(plan_.draft, plan_.ranks)); ++round) {
    if (round % kRoundsPerSign == 0) {
      check_writers_live();
    }
    const std::string failure = archive::read_failure(plan_.draft);
    FSDP_CHECK(failure.empty(), ErrorCode::kPeerFailed, "'", plan_.draft.path(),
               "' was given up: ", failure);
    FSDP_CHECK(!is_given_up_, ErrorCode::kPeerFailed, "'", plan_.draft.path(),
               "' was given up: not all ranks have written, missing: ", missing_ranks());
    archive::check_there(plan_.draft);
    std::this_thread::sleep_for(kPoll);
  }
  archive::commit_draft(plan_.draft, std::move(plan_.index), std::move(*sums), plan_.commit);
}

/// Who is gone may have said how it went just before, which then counts.
void Flight::check_writers_live() const {
  for (const int rank : archive::missing_receipts(plan_.draft, plan_.ranks)) {
    if (!archive::has_gone(plan_.draft, rank)) {
      continue;
    }
    const std::vector<int> missing = archive::missing_receipts(plan_.draft, plan_.ranks);
    FSDP_CHECK(std::ranges::find(missing, rank) == missing.end() ||
                   !archive::read_failure(plan_.draft).empty(),
               ErrorCode::kPeerFailed, "'", plan_.draft.path(), "' was given up: rank ", rank,
               " ended before it had written its part. Was it killed?");
  }
}

void Flight::set_copied(std::size_t count) {
  copied_ = count;
  copied_.notify_one();
}

void Flight::await_copied(std::size_t tensor) {
  std::size_t count = 0;
  while ((count = copied_) <= tensor) {
    copied_.wait(count);
  }
  FSDP_CHECK(count != kBrokenOff, ErrorCode::kInternal, "'", plan_.draft.path(),
             "' was given up: the copy of the weights broke off");
}

void Flight::wait_written() { is_written_.get(); }

void Flight::wait_committed() {
  is_committed_.get();
  thread_.join();
}

void Flight::give_up() {
  if (!thread_.joinable()) {
    return;
  }
  is_given_up_ = true;
  if (copied_ < tensors_) {
    set_copied(kBrokenOff);
  }
  thread_.join();
  if (plan_.rank == 0) {
    archive::abandon_draft(plan_.draft);
    archive::forget_failure(plan_.draft);
  }
}

std::string Flight::missing_ranks() const {
  return base::list_text(archive::missing_receipts(plan_.draft, plan_.ranks));
}

std::string Flight::await_outcome(std::chrono::milliseconds patience) const {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < deadline) {
    std::error_code none;
    const bool is_over = !std::filesystem::exists(plan_.draft.path(), none);
    if (std::string failure = archive::read_failure(plan_.draft); !failure.empty() || is_over) {
      return failure.empty() && !std::filesystem::exists(plan_.draft.final_path(), none)
                 ? "rank 0 has given it up"
                 : failure;
    }
    if (archive::has_gone(plan_.draft, 0)) {
      // It may have completed it in between.
      return std::filesystem::exists(plan_.draft.path(), none)
                 ? "rank 0 ended before it had completed it. Was it killed?"
                 : "";
    }
    std::this_thread::sleep_for(kPoll);
  }
  return "rank 0 has not completed it yet, missing: " + missing_ranks();
}

std::string Flight::end_alone(std::chrono::milliseconds patience) {
  if (is_written_.valid()) {
    is_written_.wait();
  }
  const auto is_there = [this](std::chrono::milliseconds limit) {
    return !is_committed_.valid() || is_committed_.wait_for(limit) == std::future_status::ready;
  };
  if (const auto early = std::min(patience, kEarly); !is_there(early)) {
    base::log(base::LogLevel::kInfo,
              "the last checkpoint waits for ranks to write, missing: ", missing_ranks(), "; ",
              (patience - early).count(), " ms more at most");
    is_given_up_ = !is_there(patience - early);
  }
  try {
    wait_committed();
  } catch (const std::exception& error) {
    if (thread_.joinable()) {
      thread_.join();
    }
    if (plan_.rank == 0) {
      archive::abandon_draft(plan_.draft);  // others may still look for the cause
    }
    // What is here may be a consequence: the draft is gone, say.
    const std::string failure = archive::read_failure(plan_.draft);
    return failure.empty() ? error.what() : failure;
  }
  return plan_.rank == 0 ? "" : await_outcome(std::min(patience, kPatienceOfOthers));
}

}  // namespace fsdp::checkpoint::detail
