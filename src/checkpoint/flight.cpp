// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/flight.hpp"

#include <chrono>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::checkpoint::detail {
namespace {

/// How often rank 0 looks for receipts.
constexpr auto kPoll = std::chrono::milliseconds(2);
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
    const auto sums = archive::write_pieces(
        plan_.draft, plan_.index.tensors, plan_.pieces,
        [this](const archive::Piece& piece) { await_copied(piece.range.tensor); });
    archive::write_receipt(plan_.draft, plan_.rank, sums);
    written_.set_value();
  } catch (...) {
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
  while (!(sums = archive::read_receipts(plan_.draft, plan_.ranks))) {
    FSDP_CHECK(!is_given_up_, ErrorCode::kPeerFailed, "'", plan_.draft.path(),
               "' was given up: not all ranks have written");
    std::this_thread::sleep_for(kPoll);
  }
  archive::commit_draft(plan_.draft, std::move(plan_.index), std::move(*sums), plan_.commit);
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
  }
}

std::string Flight::end_alone(std::chrono::milliseconds patience) {
  if (is_written_.valid()) {
    is_written_.wait();
  }
  if (is_committed_.valid() && is_committed_.wait_for(patience) != std::future_status::ready) {
    is_given_up_ = true;
  }
  try {
    wait_committed();
  } catch (const std::exception& error) {
    give_up();
    return error.what();
  }
  return "";
}

}  // namespace fsdp::checkpoint::detail
