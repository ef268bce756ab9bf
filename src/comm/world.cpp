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

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/deadline.hpp"
#include "comm/failure/state_signal.hpp"
#include "comm/gloo/gloo.hpp"
#include "comm/join/host.hpp"
#include "comm/join/regroup.hpp"
#include "comm/join/rendezvous.hpp"
#include "comm/join/set_up_exchange.hpp"
#include "comm/shm/shm.hpp"
#include "comm/threads/threads.hpp"
#include "comm/timeout.hpp"
#include "comm/two_level/two_level.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/base/rank_env.hpp"
#include "fsdp/comm/c10d.hpp"
#include "fsdp/comm/communicator.hpp"
#include "net/interface_choice.hpp"
#include "net/network.hpp"

namespace fsdp {

int World::rank() const { return communicator_->rank(); }
int World::size() const { return communicator_->size(); }
void World::barrier() const { communicator_->agree({.name = "barrier"})->wait(); }
void World::recover() const { communicator_->recover(); }
void World::publish_failure(const std::string& text) const noexcept {
  communicator_->publish_failure(text);
}

namespace {

using Milliseconds = comm::detail::Milliseconds;

/// What carries the collectives.
struct Transport {
  std::string name;
  int ranks_per_host = 0;  ///< of shm+gloo
};

/// Where this rank runs, as it tells the others.
std::string own_host(const std::string& wish, const base::RankEnvironment& environment) {
  std::string host = comm::detail::host_identity();
  if (wish != "shm" && std::getenv("FSDP_HOST_ID") == nullptr &&
      environment.local_size != environment.size) {
    // The launcher knows of other hosts, or what it takes for hosts.
    host += " from rank " + std::to_string(environment.rank - environment.local_rank);
  }
  return host;
}

/// "auto" decided, by all ranks alike. @collective
Transport choose_transport(const std::string& wish, const base::RankEnvironment& environment,
                           const comm::detail::SetUp& set_up) {
  if (wish == "gloo" || wish == "c10d") {
    return {wish};
  }
  const auto hosts = comm::detail::exchange_texts(set_up, "host", own_host(wish, environment));
  const int elsewhere = comm::detail::first_elsewhere(hosts);
  FSDP_CHECK(wish != "shm" || elsewhere < 0, ErrorCode::kInvalidArgument,
             "transport shm needs all ranks on one host, but rank 0 is on '", hosts[0],
             "' and rank ", elsewhere, " on '", hosts[static_cast<std::size_t>(elsewhere)],
             "': use gloo, or set FSDP_HOST_ID to one value where this is wrong");
  const int locals = comm::ranks_per_host(hosts);
  FSDP_CHECK(wish != "shm+gloo" || locals > 0, ErrorCode::kInvalidArgument,
             "transport shm+gloo needs several hosts with equally many ranks each, at least two, "
             "numbered host by host, but ",
             elsewhere < 0 ? "all ranks are on one: use shm"
                           : "rank 0 is on '" + hosts[0] + "' and the first elsewhere is rank " +
                                 std::to_string(elsewhere) +
                                 ": number the ranks so, or use gloo; FSDP_HOST_ID says what a "
                                 "host is");
  if (elsewhere < 0) {
    return {"shm"};
  }
  return locals > 0 ? Transport{"shm+gloo", locals} : Transport{"gloo"};
}

std::shared_ptr<comm::Communicator> connect(const comm::detail::Meeting& meeting,
                                            const comm::GlooOptions& options,
                                            const base::RankEnvironment& environment,
                                            const std::string& wish) {
  const comm::detail::SetUp set_up{.store = meeting.store,
                                   .rank = options.rank,
                                   .size = options.size,
                                   .timeout = options.timeout};
  const Transport transport = choose_transport(wish, environment, set_up);
  if (transport.name == "shm") {
    return comm::make_shm_communicator(set_up);
  }
  if (transport.name == "shm+gloo") {
    return comm::make_two_level_communicator(meeting.store, options, transport.ranks_per_host);
  }
  if (transport.name == "gloo") {
    return comm::make_gloo_communicator(meeting.store, options);
  }
  auto communicator =
      comm::make_c10d_communicator(comm::connect_gloo(meeting.store, options), options.timeout);
  communicator->agree({.name = "init"})->wait();
  return communicator;
}

/// Meets the other ranks in time, whatever they do: Gloo and the store have waits without a limit.
std::shared_ptr<comm::Communicator> meet_in_time(const base::RankEnvironment& environment,
                                                 const std::string& transport,
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
  const comm::GlooOptions options{.rank = environment.rank,
                                  .size = environment.size,
                                  .master_addr = meeting->master_address,
                                  .timeout = comm::detail::remaining(deadline)};
  const auto communicator = std::make_shared<std::shared_ptr<comm::Communicator>>();
  bool connected = false;
  try {
    connected = comm::detail::finishes_within(
        options.timeout + kPatienceForConnecting,
        [meeting, options, environment, transport, communicator] {
          base::set_log_rank(options.rank);
          *communicator = connect(*meeting, options, environment, transport);
        });
  } catch (const Error&) {
    comm::detail::announce_not_connected(meeting->store, environment.rank);
    throw;
  }
  if (!connected) {
    comm::detail::fail_to_connect(meeting->store, environment.rank, environment.size,
                                  "no connection within " + comm::detail::to_text(timeout));
  }
  return *communicator;
}

}  // namespace

World init(const InitOptions& options) {
  FSDP_CHECK(options.transport == "auto" || options.transport == "shm" ||
                 options.transport == "gloo" || options.transport == "shm+gloo" ||
                 options.transport == "c10d",
             ErrorCode::kInvalidArgument, "transport is '", options.transport,
             "', must be auto, shm, gloo, shm+gloo or c10d");
  const base::RankEnvironment environment = base::read_rank_environment();
  net::check_interface_variable();
  const auto given = [](std::chrono::milliseconds option, auto from_environment) {
    return option.count() > 0 ? option : from_environment();
  };
  const auto timeout = given(options.timeout, comm::detail::default_timeout);
  const auto setup_timeout = given(options.setup_timeout, comm::detail::default_setup_timeout);
  std::shared_ptr<comm::Communicator> communicator;
  comm::detail::print_collectives_on_signal();
  if (environment.size == 1) {
    communicator = comm::make_threads_communicator(comm::make_thread_group(1, timeout), 0);
  } else {
    base::set_log_rank(environment.rank);
    communicator = meet_in_time(environment, options.transport, setup_timeout);
    communicator->set_timeout(timeout);
    base::log(base::LogLevel::kDebug, "rank ", environment.rank, " of ", environment.size, " (",
              environment.source, ") met at ",
              net::endpoint_text(environment.master_addr, environment.master_port), ", transport ",
              communicator->transport());
  }
  return World(std::move(communicator), environment.local_rank, environment.local_size);
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
      const auto communicator = comm::make_threads_communicator(group, rank);
      try {
        body(World(communicator, rank, size));
      } catch (...) {
        communicator->publish_failure(first.record(rank));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  first.rethrow();
}

}  // namespace fsdp
