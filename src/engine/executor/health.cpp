// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/health.hpp"

#include <string>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Whether the ranks have parted, rather than one having failed by itself.
bool is_of_the_group(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kPeerFailed ||
         code == ErrorCode::kMismatch;
}

}  // namespace

Health::Health(comm::Job& job) : job_(job), generation_(job.generation()) {}

bool Health::is_stale() const { return job_.generation() != generation_; }

void Health::check() const {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

void Health::renew() {
  generation_ = job_.generation();
  failure_ = nullptr;
}

void Health::fail() {
  failure_ = std::current_exception();
  std::string text;
  try {
    throw;
  } catch (const Error& error) {
    text = error.what();
    if (is_of_the_group(error.code())) {
      failure_ = std::make_exception_ptr(Error(
          error.code(), error.text() + ". Restart the job, or, if every process still runs, call "
                                       "world.recover() on all ranks"));
    }
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an exception that is no std::exception";
  }
  job_.publish_failure(text);
  std::rethrow_exception(failure_);
}

void Health::note(std::exception_ptr failure) noexcept {
  if (failure_ == nullptr) {
    failure_ = std::move(failure);
  }
}

}  // namespace fsdp::engine
