// SPDX-License-Identifier: Apache-2.0
#include "comm/join/own_store.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "comm/join/claims.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/door.hpp"
#include "net/network.hpp"
#include "net/reach.hpp"
#include "net/store_client.hpp"
#include "net/store_server.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr Milliseconds kShortPause{5};
constexpr Milliseconds kLongPause{100};

std::unique_ptr<net::StoreServer> make_server(const MeetingPlace& place, net::Door door,
                                              const std::string& secret) {
  constexpr std::size_t kMore = 64;
  return std::make_unique<net::StoreServer>(
      std::move(door),
      net::StoreServerOptions{
          .secret = secret,
          .max_guests = 2 * static_cast<std::size_t>(place.environment.size) + kMore});
}

c10::intrusive_ptr<JobStore> make_store(std::unique_ptr<net::StoreServer> server,
                                        const MeetingPlace& place) {
  return c10::make_intrusive<JobStore>(std::move(server), remaining(place.deadline));
}

c10::intrusive_ptr<JobStore> make_store(base::Descriptor socket, const MeetingPlace& place) {
  return c10::make_intrusive<JobStore>(std::make_unique<net::StoreClient>(std::move(socket)),
                                       remaining(place.deadline));
}

/// Rank 0 where another one of this job listens already, which then learns of it.
void refuse_second_rank_zero(net::Connection connection, const MeetingPlace& place,
                             const std::string& secret) {
  constexpr Milliseconds kPatience{5000};
  const auto deadline = std::min(place.deadline, Clock::now() + kPatience);
  if (connection.error == 0 &&
      net::greet_store(connection.socket.get(), secret, deadline) == net::Welcome::kAdmitted) {
    refuse_second_server(*make_store(std::move(connection.socket), place), place.endpoint);
  }
}

c10::intrusive_ptr<JobStore> serve_on_this_host(const MeetingPlace& place) {
  const std::string path = net::private_path(place.environment.master_port);
  while (true) {
    net::Door door = net::open_private_door(path);
    if (door.socket() >= 0) {
      return make_store(make_server(place, std::move(door), ""), place);
    }
    // One that has met all its ranks meanwhile listens no more.
    refuse_second_rank_zero(net::connect_to_path(path), place, "");
    FSDP_CHECK(Clock::now() < place.deadline, ErrorCode::kIo, place.who, " cannot serve ",
               place.endpoint, " (MASTER_ADDR, MASTER_PORT): another process of this user listens ",
               "at '", path, "' and does not answer. Choose another MASTER_PORT");
    std::this_thread::sleep_for(kShortPause);
  }
}

/// An address of this host at which a listener on `port` answers.
net::Connection connect_to_own(std::uint16_t port) {
  for (const char* literal : {"127.0.0.1", "::1"}) {
    const net::Resolution found = net::resolve(literal, port);
    net::Connection connection;
    if (!found.addresses.empty() &&
        (connection = net::connect_to(found.addresses.front(), Milliseconds(1000))).error == 0) {
      return connection;
    }
  }
  return {.error = ECONNREFUSED};
}

/// MASTER_ADDR may be a name that only other hosts know (a service), so this is no error.
void warn_of_foreign_master(const base::RankEnvironment& environment) {
  const net::Resolution found = net::resolve(environment.master_addr, environment.master_port);
  const std::vector<net::Interface> interfaces = net::list_interfaces();
  for (const net::Address& address : found.addresses) {
    const auto source = net::source_address_towards(address.host());
    if (address.is_loopback() || (source && source->host() == address.host())) {
      return;
    }
  }
  base::log(base::LogLevel::kWarn, "rank 0: MASTER_ADDR is '", environment.master_addr,
            "', which is no address of this host (", net::to_text(interfaces),
            "); the other ranks look for rank 0 there");
}

c10::intrusive_ptr<JobStore> serve_over_hosts(const MeetingPlace& place) {
  const std::uint16_t port = place.environment.master_port;
  net::Door door;
  try {
    door = net::Door(net::listen_on("", port));
  } catch (const Error& error) {
    refuse_second_rank_zero(connect_to_own(port), place, place.secret);
    fail(ErrorCode::kIo, place.who, " cannot serve ", place.endpoint,
         " (MASTER_ADDR, MASTER_PORT): ", error.text(), ". Choose another MASTER_PORT");
  }
  warn_of_foreign_master(place.environment);
  if (place.secret.empty()) {
    base::log(base::LogLevel::kWarn, "rank 0: the ranks meet at ", place.endpoint,
              " without a secret, so whoever reaches that port can join in. FSDP_JOB_SECRET or "
              "FSDP_JOB_SECRET_FILE, the same on all ranks, keeps others out");
  }
  return make_store(make_server(place, std::move(door), place.secret), place);
}

/// A connection to rank 0's store by which requests can go.
struct Reached {
  base::Descriptor socket = {};
  std::string why_not = {};  ///< where there is none yet
};

/// Waits for the first word of a listener, and says for whom; false when there is none in time.
bool await_word(int socket, const MeetingPlace& place, net::WaitingNotice& notice,
                Clock::time_point start) {
  constexpr int kTick = 100;
  while (Clock::now() < place.deadline) {
    pollfd ready{socket, POLLIN, 0};
    if (::poll(&ready, 1, kTick) > 0) {
      return true;
    }
    const auto elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
    if (notice.is_due(elapsed)) {
      base::log(base::LogLevel::kInfo, place.who, ": waiting for rank 0 at ", place.endpoint, ", ",
                net::seconds_text(elapsed), " so far: its port is open");
    }
  }
  return false;
}

Reached greet(net::Connection connection, const MeetingPlace& place, const std::string& secret,
              net::WaitingNotice& notice, Clock::time_point start) {
  if (connection.error != 0) {
    return {.why_not = std::strerror(connection.error)};
  }
  const int socket = connection.socket.get();
  const net::Welcome welcome = await_word(socket, place, notice, start)
                                   ? net::greet_store(socket, secret, place.deadline)
                                   : net::Welcome::kSilent;
  switch (welcome) {
    case net::Welcome::kAdmitted: return {.socket = std::move(connection.socket)};
    case net::Welcome::kClosed: return {.why_not = "it has closed the connection"};
    case net::Welcome::kRefused:
      fail(ErrorCode::kInvalidArgument, place.who, " is not admitted by rank 0 at ", place.endpoint,
           secret.empty() ? ": this rank has no job secret, and rank 0 has one"
                          : ": rank 0 has another job secret, or none",
           ". FSDP_JOB_SECRET, or the file that FSDP_JOB_SECRET_FILE names, must be the same on "
           "all ranks");
    case net::Welcome::kSilent:
    case net::Welcome::kStranger: break;
  }
  const auto elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
  fail(ErrorCode::kTimeout, place.who, " is still waiting for rank 0 at ", place.endpoint,
       " after ", net::seconds_text(elapsed), ": its port is open, but no store of a job answers. ",
       welcome == net::Welcome::kSilent ? "Rank 0 stands still, or another program has that port"
                                        : "Another program has that port");
}

Meeting reach_on_this_host(const MeetingPlace& place) {
  const std::string path = net::private_path(place.environment.master_port);
  const auto start = Clock::now();
  net::WaitingNotice notice;
  for (Milliseconds pause = kShortPause;; pause = std::min(pause * 2, kLongPause)) {
    Reached reached = greet(net::connect_to_path(path), place, "", notice, start);
    if (reached.socket.get() >= 0) {
      // Where all listen, of the family that was asked for.
      return {.store = make_store(std::move(reached.socket), place),
              .master_address = place.environment.master_addr == "::1" ? "::1" : "127.0.0.1"};
    }
    const auto elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - start);
    const std::string why = "at '" + path + "': " + reached.why_not;
    if (Clock::now() + pause >= place.deadline) {
      fail(ErrorCode::kTimeout, place.who, " cannot reach rank 0 at ", place.endpoint, " after ",
           net::seconds_text(elapsed), ": ranks of one host meet ", why,
           ". Rank 0 was not started, has ended, runs as another user, or in a container with "
           "another /tmp, or has met others. FSDP_SETUP_TIMEOUT says how long to try");
    }
    if (notice.is_due(elapsed)) {
      base::log(base::LogLevel::kInfo, place.who, ": waiting for rank 0 at ", place.endpoint, ", ",
                net::seconds_text(elapsed), " so far: ", why);
    }
    std::this_thread::sleep_for(pause);
  }
}

Meeting reach_over_hosts(const MeetingPlace& place) {
  const auto start = Clock::now();
  net::WaitingNotice notice;
  while (true) {
    std::string address = net::reach(
        {.host = place.environment.master_addr,
         .port = place.environment.master_port,
         .limit = remaining(place.deadline),
         .who = place.who,
         .whom = "rank 0",
         .hint = "MASTER_ADDR and MASTER_PORT say where, FSDP_SETUP_TIMEOUT how long to try"});
    const net::Resolution found = net::resolve(address, place.environment.master_port);
    Reached reached = greet(net::connect_to(found.addresses.front(), remaining(place.deadline)),
                            place, place.secret, notice, start);
    if (reached.socket.get() >= 0) {
      return {.store = make_store(std::move(reached.socket), place),
              .master_address = std::move(address)};
    }
    FSDP_CHECK(Clock::now() < place.deadline, ErrorCode::kTimeout, place.who,
               " cannot reach rank 0 at ", place.endpoint, ": ", reached.why_not,
               ". Has rank 0 met others, or does it end again and again?");
    std::this_thread::sleep_for(kLongPause);
  }
}

}  // namespace

bool MeetingPlace::is_on_one_host() const {
  const std::string& address = environment.master_addr;
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

c10::intrusive_ptr<JobStore> serve_store(const MeetingPlace& place) {
  return place.is_on_one_host() ? serve_on_this_host(place) : serve_over_hosts(place);
}

Meeting reach_store(const MeetingPlace& place) {
  return place.is_on_one_host() ? reach_on_this_host(place) : reach_over_hosts(place);
}

}  // namespace fsdp::comm::detail
