// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_watch.hpp"

#include <algorithm>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::comm::detail::nccl {
namespace {

constexpr Milliseconds kInterval{100};
/// Younger ones are nothing to ask the device about, and more are not remembered: behind one that
/// hangs, the others hang as well.
constexpr Milliseconds kPatience{1000};
constexpr std::size_t kRemembered = 256;

}  // namespace

Watch::Watch(std::shared_ptr<Job> job, c10::Device device)
    : job_(std::move(job)), device_(device), thread_([this, rank = job_->rank()] {
        base::set_log_rank(rank);
        run();
      }) {}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::add(const std::shared_ptr<Communicator>& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& of) { return of.expired(); });
  communicators_.push_back(communicator);
}

std::shared_ptr<Flight> Watch::take() {
  const std::lock_guard lock(mutex_);
  const auto idle = std::ranges::find_if(
      flights_, [](const std::shared_ptr<Flight>& of) { return of.use_count() == 1; });
  if (idle != flights_.end()) {
    return *idle;
  }
  return flights_.emplace_back(std::make_shared<Flight>(device_.type()));
}

void Watch::start(const std::shared_ptr<Flight>& flight) {
  const std::lock_guard lock(mutex_);
  in_flight_.push_back(flight);
  if (in_flight_.size() > kRemembered) {
    in_flight_.pop_front();
  }
}

std::string Watch::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watch::end(const std::string& text) {
  std::vector<std::shared_ptr<Communicator>> all;
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure_.empty() ? text : failure_;
    for (const auto& of : communicators_) {
      if (auto communicator = of.lock()) {
        all.push_back(std::move(communicator));
      }
    }
  }
  for (const auto& communicator : all) {
    communicator->abort();
  }
}

void Watch::recover() {
  end("the group recovers");
  const std::lock_guard asking(job_mutex_);
  job_->recover();
  const std::lock_guard lock(mutex_);
  failure_.clear();
  communicators_.clear();
  in_flight_.clear();
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [&] { return is_stopping_; })) {
    lock.unlock();
    try {
      look();
    } catch (const std::exception& error) {  // of the device's driver
      end(error.what());
    }
    lock.lock();
  }
}

void Watch::look() {
  const std::lock_guard asking(job_mutex_);
  if (!failure().empty()) {
    return;
  }
  if (const std::string first = job_->first_failure(); !first.empty()) {
    return end("first failure: " + first);
  }
  std::vector<std::weak_ptr<Communicator>> communicators;
  {
    const std::lock_guard lock(mutex_);
    communicators = communicators_;
  }
  std::string text = find_late(Clock::now());
  for (const auto& of : communicators) {
    const auto communicator = of.lock();
    if (const std::string error = communicator ? communicator->async_error() : "";
        text.empty() && !error.empty()) {
      text = "NCCL on " + device_.str() + " says: " + error;
    }
  }
  if (!text.empty()) {
    job_->publish_failure(text);
    end(text);
  }
}

std::string Watch::find_late(Clock::time_point now) {
  std::shared_ptr<Flight> oldest;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (oldest && !in_flight_.empty() && in_flight_.front() == oldest) {
        in_flight_.pop_front();
      }
      if (in_flight_.empty() || now - in_flight_.front()->began < kPatience) {
        return "";
      }
      oldest = in_flight_.front();
    }
    const Flight::State state = oldest->state;
    if (state == Flight::State::kBeingIssued ||
        (state == Flight::State::kIssued && !oldest->done.query())) {
      break;
    }
  }
  const Milliseconds limit = job_->timeout();
  if (now - oldest->began < limit) {
    return "";
  }
  return describe_in_full(oldest->fingerprint) + " on rank " +
         std::to_string(oldest->fingerprint.rank) + " has not ended on " + device_.str() +
         " within " + to_text(limit) +
         ": a rank did not start it, or cannot be reached. Every rank must make this call; "
         "FSDP_TIMEOUT sets the limit";
}

}  // namespace fsdp::comm::detail::nccl
