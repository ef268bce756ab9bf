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

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/deadline.hpp"
#include "comm/device/rank_device.hpp"
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

/// What the ranks have in common, and where this one computes.
struct Met {
  comm::Link link;
  c10::Device device = c10::kCPU;
};

/// Only what copies can be shared by two ranks.
bool may_share_device(const std::string& transport) {
  return transport != "auto" && transport != "nccl";
}

comm::detail::RankDevice choose_device(const base::RankEnvironment& environment,
                                       const InitOptions& options) {
  return comm::detail::choose_device(options.device, environment,
                                     may_share_device(options.transport));
}

/// What one rank cannot have, no rank gets. @collective all ranks @blocks
/// @throws Error on all ranks, naming the first that cannot, or two that compute on other kinds
c10::Device agree_on_device(const comm::detail::Site& site,
                            const base::RankEnvironment& environment, const InitOptions& options) {
  if (options.device == "cpu") {
    return c10::kCPU;
  }
  comm::detail::RankDevice chosen;
  std::string mine;
  try {
    chosen = choose_device(environment, options);
    mine = "on " + std::string(c10::DeviceTypeName(chosen.device.type(), /*lower_case=*/true)) +
           "\n" + chosen.note;
  } catch (const Error& error) {
    mine = "no" + std::to_string(static_cast<int>(error.code())) + "\n" + error.text();
  }
  const auto all = site.ask_all("device", mine);
  const auto head = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with("no")) {
      fail(static_cast<ErrorCode>(std::stoi(all[rank].substr(2))), "rank ", rank, ": ",
           all[rank].substr(all[rank].find('\n') + 1));
    }
    FSDP_CHECK(head(all[rank]) == head(all[0]), ErrorCode::kInvalidArgument, "rank 0 computes ",
               head(all[0]), " and rank ", rank, " ", head(all[rank]), ". ",
               all[rank].substr(all[rank].find('\n') + 1),
               "Name the device (--device, InitOptions::device)");
  }
  if (environment.rank == 0 && !chosen.note.empty()) {
    base::log(base::LogLevel::kInfo, chosen.note);
  }
  return chosen.device;
}

/// Meets the other ranks in time, whatever they do: Gloo and the store have waits without a limit.
Met meet_in_time(const base::RankEnvironment& environment, const InitOptions& options,
                 Milliseconds timeout) {
  // Ranks that ask for another device ask for another way to each other.
  const std::string transport =
      options.transport + (options.device == "cpu" ? "" : " for " + options.device);
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
  const auto met = std::make_shared<Met>();
  bool connected = false;
  try {
    connected = comm::detail::finishes_within(
        time_left + kPatienceForConnecting, [meeting, environment, options, time_left, met] {
          base::set_log_rank(environment.rank);
          const comm::detail::Site site(environment, *meeting, options.transport, time_left);
          met->device = agree_on_device(site, environment, options);
          met->link = comm::detail::connect(site.on(met->device));
        });
  } catch (const Error&) {
    comm::detail::announce_not_connected(meeting->store, environment.rank);
    throw;
  }
  if (!connected) {
    comm::detail::fail_to_connect(meeting->store, environment.rank, environment.size,
                                  "no connection within " + comm::detail::to_text(timeout));
  }
  return *met;
}

}  // namespace

World init(const InitOptions& given_options) {
  InitOptions options = given_options;
  comm::check_transport_word(options.transport);
  if (options.device.empty()) {
    const char* variable = std::getenv("FSDP_DEVICE");
    options.device = variable == nullptr || *variable == '\0' ? "cpu" : variable;
  }
  comm::check_device_word(options.device);
  const base::RankEnvironment environment = base::read_rank_environment();
  net::check_interface_variable();
  const auto given = [](std::chrono::milliseconds option, auto from_environment) {
    return option.count() > 0 ? option : from_environment();
  };
  const auto timeout = given(options.timeout, comm::detail::default_timeout);
  const auto setup_timeout = given(options.setup_timeout, comm::detail::default_setup_timeout);
  Met met;
  comm::detail::print_collectives_on_signal();
  if (environment.size == 1) {
    const comm::detail::Site alone(environment, {}, options.transport, setup_timeout);
    met.device = agree_on_device(alone, environment, options);
    met.link = comm::detail::connect(alone.on(met.device));
    met.link.job->set_timeout(timeout);
  } else {
    base::set_log_rank(environment.rank);
    met = meet_in_time(environment, options, setup_timeout);
    met.link.job->set_timeout(timeout);
    base::log(base::LogLevel::kDebug, "rank ", environment.rank, " of ", environment.size, " (",
              environment.source, ") met at ",
              net::endpoint_text(environment.master_addr, environment.master_port), ", transport ",
              met.link.transport->traits().name);
  }
  if (!met.device.is_cpu()) {
    c10::impl::getDeviceGuardImpl(met.device.type())->setDevice(met.device);
  }
  return World(std::move(met.link), environment.local_rank, environment.local_size, met.device);
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
