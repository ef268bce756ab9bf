// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/world.hpp"

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/threads.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp {

int World::rank() const { return communicator_->rank(); }
int World::size() const { return communicator_->size(); }
void World::barrier() const { communicator_->agree({.name = "barrier"})->wait(); }

World init(const InitOptions&) {
  auto group = comm::make_thread_group(1, comm::detail::default_timeout());
  return World(comm::make_threads_communicator(std::move(group), 0), 0, 1);
}

namespace {

/// The failure of a rank that came first in time.
class FirstFailure {
 public:
  /// Called inside a catch block. Returns the text that the peers see.
  std::string record(int rank) {
    std::string text;
    std::exception_ptr failure = std::current_exception();
    try {
      throw;
    } catch (const Error& error) {
      text = error.what();
      failure = std::make_exception_ptr(
          Error(error.code(), "rank " + std::to_string(rank) + ": " + error.text()));
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
      text = "an exception that is no std::exception";
    }
    std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = failure;
    }
    return text;
  }

  void rethrow() {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

void run_threads(int size, const std::function<void(World)>& body) {
  FSDP_CHECK(size >= 1, ErrorCode::kInvalidArgument, "run_threads for ", size,
             " ranks, must be at least 1");
  const auto group = comm::make_thread_group(size, comm::detail::default_timeout());
  FirstFailure first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(World(comm::make_threads_communicator(group, rank), rank, size));
      } catch (...) {
        comm::publish_failure(*group, rank, first.record(rank));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  first.rethrow();
}

}  // namespace fsdp
