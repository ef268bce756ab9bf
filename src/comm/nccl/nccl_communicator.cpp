// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.hpp"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "comm/deadline.hpp"
#include "comm/device/device_identity.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::comm::detail::nccl {
namespace {

constexpr Milliseconds kPatienceForCall{1000};
constexpr Milliseconds kPatienceForEnd{10000};
constexpr std::chrono::microseconds kPause{50};

template <std::size_t kSize>
void copy_text(std::array<char, kSize>& dst, const std::string& src) {
  std::copy_n(src.begin(), std::min(kSize - 1, src.size()), dst.begin());
}

/// What a rank tells of itself before it connects.
struct Card {
  UniqueId id{};  ///< of rank 0
  int version = 0;
  std::array<char, 288> device{};
  std::array<char, 224> problem{};
};

/// NCCL may wait here for a network that does not answer.
UniqueId make_id(const std::shared_ptr<const Library>& library, Milliseconds limit) {
  struct Made {
    UniqueId id{};
    Result result = kInternalError;
  };
  const auto made = std::make_shared<Made>();
  FSDP_CHECK(
      finishes_within(limit, [made, library] { made->result = library->get_unique_id(&made->id); }),
      ErrorCode::kTimeout, "NCCL has made no identity within ", to_text(limit));
  FSDP_CHECK(made->result == kSuccess, ErrorCode::kUnsupported,
             "NCCL makes no identity: ", library->get_error_string(made->result));
  return made->id;
}

/// Alike on all ranks, which hold the same cards.
void check_cards(const std::vector<Card>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    FSDP_CHECK(card.problem[0] == '\0', ErrorCode::kUnsupported, "transport nccl: rank ", rank,
               ": ", card.problem.data());
    FSDP_CHECK(card.version == cards[0].version, ErrorCode::kUnsupported,
               "transport nccl: rank 0 has NCCL ", version_text(cards[0].version), " and rank ",
               rank, " ", version_text(card.version), ": all need the same; FSDP_NCCL names one");
    for (std::size_t other = 0; other < rank; ++other) {
      FSDP_CHECK(card.device != cards[other].device, ErrorCode::kInvalidArgument,
                 describe_shared_device(static_cast<int>(other), static_cast<int>(rank),
                                        card.device.data()));
    }
  }
}

}  // namespace

std::shared_ptr<Communicator> Communicator::connect(std::shared_ptr<const Library> library,
                                                    Job& job, c10::Device device,
                                                    Milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  Card mine{.version = library->version};
  copy_text(mine.device, device_identity(device));
  if (job.rank() == 0) {
    try {
      mine.id = make_id(library, limit);
    } catch (const Error& error) {
      copy_text(mine.problem, error.text());
    }
  }
  const std::vector<Card> cards = gather_values(job, mine, "connect nccl");
  check_cards(cards);

  const std::string what = "connecting " + std::to_string(job.size()) + " ranks by NCCL " +
                           library->version_text() + " on rank " + std::to_string(job.rank());
  const auto made = std::shared_ptr<Communicator>(new Communicator(library, device));
  struct Start {
    Handle handle = nullptr;
    Result result = kInternalError;
  };
  const auto start = std::make_shared<Start>();
  const auto in_time = [&] {
    return finishes_within(remaining(deadline), [start, library, device, id = cards[0].id,
                                                 ranks = job.size(), rank = job.rank()] {
      const c10::DeviceGuard on_device(device);
      Config config;
      config.blocking = 0;  // so that a rank that never comes does not hold the others for ever
      start->result = library->init_rank(&start->handle, ranks, id, rank, &config);
    });
  };
  try {
    FSDP_CHECK(in_time(), ErrorCode::kTimeout, what, ": NCCL has not returned within ",
               to_text(limit));
    made->handle_ = start->handle;
    made->wait_while_in_progress(start->result, what, deadline, limit);
  } catch (const Error& error) {
    made->abort();
    const std::string first = job.first_failure();
    const std::string text = error.text() + (first.empty() ? "" : "; first failure: " + first);
    job.publish_failure(text);
    throw Error(error.code(), text);
  }
  return made;
}

Communicator::~Communicator() {
  if (is_aborted_.exchange(true) || handle_ == nullptr) {
    return;
  }
  const bool has_ended = finishes_within(kPatienceForEnd, [library = library_, handle = handle_] {
    Result result = library->finalize(handle);
    const auto until = Clock::now() + kPatienceForEnd / 2;
    while (result == kInProgress && Clock::now() < until) {
      std::this_thread::sleep_for(kPause);
      if (library->get_async_error(handle, &result) != kSuccess) {
        break;
      }
    }
    result == kSuccess ? library->destroy(handle) : library->abort(handle);
  });
  if (!has_ended) {
    base::log(base::LogLevel::kWarn, "a communicator of NCCL on ", device_.str(),
              " has not ended within ", to_text(kPatienceForEnd), " and is left behind");
  }
}

Result Communicator::state() {
  Result state = kInternalError;
  const Result asked = library_->get_async_error(handle_, &state);
  return asked == kSuccess ? state : asked;
}

std::string Communicator::describe(Result result) {
  const char* more = library_->get_last_error(handle_);
  std::string text = library_->get_error_string(result);
  if (more != nullptr && *more != '\0') {
    text += std::string(" (") + more + ")";
  }
  return text;
}

void Communicator::check_alive(const std::string& what) const {
  FSDP_CHECK(!is_aborted_, ErrorCode::kPeerFailed, what,
             ": the communicator was aborted after a failure");
}

void Communicator::wait_while_in_progress(Result result, const std::string& what,
                                          Clock::time_point deadline, Milliseconds limit) {
  while (result == kInProgress) {
    FSDP_CHECK(Clock::now() < deadline, ErrorCode::kTimeout, what, ": NCCL is not done within ",
               to_text(limit),
               ". Has a rank ended, or can it not be reached? NCCL_DEBUG=INFO tells more");
    std::this_thread::sleep_for(kPause);
    const std::lock_guard inside(mutex_);
    check_alive(what);
    result = state();
  }
  const std::lock_guard inside(mutex_);
  check_alive(what);
  FSDP_CHECK(result == kSuccess, ErrorCode::kPeerFailed, what, ": NCCL says: ", describe(result));
}

void Communicator::issue(const std::string& what, Milliseconds limit, const Call& call) {
  Result result = kSuccess;
  {
    const std::lock_guard inside(mutex_);
    check_alive(what);
    const c10::DeviceGuard on_device(device_);
    result = call(*library_, handle_);
  }
  wait_while_in_progress(result, what, Clock::now() + limit, limit);
}

void Communicator::abort() noexcept {
  if (is_aborted_.exchange(true) || handle_ == nullptr) {
    return;
  }
  // Who is inside of a call comes out at once, unless NCCL hangs there: then abort() is what ends
  // it.
  const bool is_held = mutex_.try_lock_for(kPatienceForCall);
  try {
    const bool has_ended = finishes_within(
        kPatienceForEnd, [library = library_, handle = handle_] { library->abort(handle); });
    if (!has_ended) {
      base::log(base::LogLevel::kWarn, "NCCL does not abort on ", device_.str(), " within ",
                to_text(kPatienceForEnd), ": what it has begun there may never end");
    }
  } catch (const std::exception& error) {
    base::log(base::LogLevel::kWarn, "NCCL does not abort on ", device_.str(), ": ", error.what());
  }
  if (is_held) {
    mutex_.unlock();
  }
}

std::string Communicator::async_error() {
  const std::unique_lock inside(mutex_, std::try_to_lock);
  if (!inside.owns_lock() || is_aborted_) {
    return "";
  }
  const Result result = state();
  return result == kSuccess || result == kInProgress ? "" : describe(result);
}

}  // namespace fsdp::comm::detail::nccl
