// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/world.hpp"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/deadline.hpp"
#include "comm/failure/state_signal.hpp"
#include "comm/join/regroup.hpp"
#include "comm/join/rendezvous.hpp"
#include "comm/join/site.hpp"
#include "comm/threads/threads.hpp"
#include "comm/timeout.hpp"
#include "comm/transport_table.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/base/rank_env.hpp"
#include "fsdp/comm/transports.hpp"
#include "net/interface_choice.hpp"
#include "net/network.hpp"

namespace fsdp {

int World::rank() const { return link_.rank(); }
int World::size() const { return link_.size(); }
void World::barrier() const { link_.job->barrier({.name = "barrier"}); }
void World::recover() const { link_.job->recover(); }
void World::publish_failure(const std::string& text) const noexcept {
  link_.job->publish_failure(text);
}

namespace {

using Milliseconds = comm::detail::Milliseconds;

/// Meets the other ranks in time, whatever they do: Gloo and the store have waits without a limit.
comm::Link meet_in_time(const base::RankEnvironment& environment, const std::string& transport,
                        Milliseconds timeout) {
  // What ends with an error of its own needs a moment for it.
  constexpr Milliseconds kPatienceForMeeting{1200};
  constexpr Milliseconds kPatienceForConnecting{200};
  const auto deadline = comm::detail::Clock::now() + timeout;
  const auto meeting = std::make_shared<comm::detail::Meeting>();
  FSDP_CHECK(comm::detail::finishes_within(timeout + kPatienceForMeeting,
                                           [meeting, environment, transport, timeout] {
                                             base::set_log_rank(environment.rank);
                                             *meeting = comm::detail::join_store(
                                                 environment, transport, timeout);
                                           }),
             ErrorCode::kTimeout, "rank ", environment.rank, " of ", environment.size,
             " got no answer of rank 0 at ", environment.master_addr, ":", environment.master_port,
             " (MASTER_ADDR, MASTER_PORT) within ", comm::detail::to_text(timeout),
             ": is that process stopped, or its host gone? FSDP_SETUP_TIMEOUT sets the limit");
  const auto time_left = comm::detail::remaining(deadline);
  const auto link = std::make_shared<comm::Link>();
  bool connected = false;
  try {
    connected = comm::detail::finishes_within(
        time_left + kPatienceForConnecting, [meeting, environment, transport, time_left, link] {
          base::set_log_rank(environment.rank);
          const comm::detail::Site site(environment, *meeting, transport, time_left);
          *link = comm::detail::choose_row(site).make(site);
        });
  } catch (const Error&) {
    comm::detail::announce_not_connected(meeting->store, environment.rank);
    throw;
  }
  if (!connected) {
    comm::detail::fail_to_connect(meeting->store, environment.rank, environment.size,
                                  "no connection within " + comm::detail::to_text(timeout));
  }
  return *link;
}

}  // namespace

World init(const InitOptions& options) {
  comm::check_transport_word(options.transport);
  const base::RankEnvironment environment = base::read_rank_environment();
  net::check_interface_variable();
  const auto given = [](std::chrono::milliseconds option, auto from_environment) {
    return option.count() > 0 ? option : from_environment();
  };
  const auto timeout = given(options.timeout, comm::detail::default_timeout);
  const auto setup_timeout = given(options.setup_timeout, comm::detail::default_setup_timeout);
  comm::Link link;
  comm::detail::print_collectives_on_signal();
  if (environment.size == 1) {
    const comm::detail::Site alone(environment, {}, "threads", timeout);
    link = comm::detail::choose_row(alone).make(alone);
  } else {
    base::set_log_rank(environment.rank);
    link = meet_in_time(environment, options.transport, setup_timeout);
    link.job->set_timeout(timeout);
    base::log(base::LogLevel::kDebug, "rank ", environment.rank, " of ", environment.size, " (",
              environment.source, ") met at ",
              net::endpoint_text(environment.master_addr, environment.master_port), ", transport ",
              link.transport->traits().name);
  }
  return World(std::move(link), environment.local_rank, environment.local_size);
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
      const comm::Link link = comm::make_threads_transport(group, rank)->link();
      try {
        body(World(link, rank, size));
      } catch (...) {
        link.job->publish_failure(first.record(rank));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  first.rethrow();
}

}  // namespace fsdp
