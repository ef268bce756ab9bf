// SPDX-License-Identifier: Apache-2.0
/// What strangers can do at the ports at which Gloo listens while ranks connect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo.hpp"
#include "comm/join/rendezvous.hpp"
#include "fsdp/base/rank_env.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "net/listeners.hpp"
#include "net/network.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::ProcessResult;
using testing::HasSubstr;

TEST(Setup, Fault151_StrangersAtGloosDoorDoNotEndTheJob) {
  for (const ProcessResult& rank : test::run_processes(2, "crowd", [](int) {
         rlimit files{};
         ::getrlimit(RLIMIT_NOFILE, &files);
         const rlim_t allowed = files.rlim_max;
         files.rlim_cur = 100;
         ::setrlimit(RLIMIT_NOFILE, &files);
         const std::set<int> before = net::listening_sockets();
         const World world = init({.transport = "gloo"});
         ::getrlimit(RLIMIT_NOFILE, &files);
         EXPECT_EQ(files.rlim_cur, allowed);
         at::Tensor port = at::zeros({1}, at::kLong);
         for (const int socket : net::listening_sockets()) {
           if (!before.contains(socket) && world.rank() == 0) {
             port.fill_(static_cast<std::int64_t>(net::port_of(socket)));
           }
         }
         world.transport().broadcast(port, 0, {.name = "port"})->wait();
         ASSERT_NE(port.item<std::int64_t>(), 0);
         std::vector<base::Descriptor> crowd;
         if (world.rank() == 0) {
           files.rlim_cur = 100;
           ::setrlimit(RLIMIT_NOFILE, &files);
         }
         world.barrier();
         const net::Address door =
             net::resolve("127.0.0.1", static_cast<std::uint16_t>(port.item<std::int64_t>()))
                 .addresses.front();
         for (int i = 0; i < 300 && world.rank() == 1; ++i) {
           crowd.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
           ::connect(crowd.back().get(), reinterpret_cast<const sockaddr*>(&door.storage),
                     door.length);
         }
         for (int i = 0; i < 100; ++i) {
           world.barrier();
         }
       })) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
  }
}

/// Takes the seats of Gloo's first pairs at the first socket on which this process listens, as
/// another user of the host can, if he is quick; then says `word`.
class Stranger {
 public:
  explicit Stranger(std::string word) : word_(std::move(word)) {}
  ~Stranger() {
    is_stopping_ = true;
    thread_.join();
  }

 private:
  void run() {
    std::set<int> doors;
    while (doors.empty() && !is_stopping_) {
      doors = net::listening_sockets();
    }
    for (const int door : doors) {
      const auto at = net::resolve("127.0.0.1", net::port_of(door)).addresses.front();
      for (std::int64_t seat = 0; seat < 4; ++seat) {
        connections_.push_back(net::connect_to(at, milliseconds(200)));
        const std::string text =
            std::string(reinterpret_cast<const char*>(&seat), sizeof(seat)) + word_;
        ::send(connections_.back().socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
      }
    }
  }

  const std::string word_;
  std::vector<net::Connection> connections_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_{[this] { run(); }};
};

std::vector<ProcessResult> connect_beside(const std::string& word) {
  return test::run_processes(2, "seat", [&](int) {
    const auto environment = base::read_rank_environment();
    const comm::detail::Meeting meeting =
        comm::detail::join_store(environment, "gloo", seconds(60));
    const Stranger stranger(word);
    ::usleep(environment.rank == 1 ? 200000 : 0);  // time for the stranger at rank 0
    const auto transport =
        comm::make_gloo_transport(meeting.store, {.rank = environment.rank,
                                                  .size = environment.size,
                                                  .master_addr = meeting.master_address,
                                                  .timeout = seconds(60),
                                                  .attempt = milliseconds(500)});
    at::Tensor sum = at::full({1}, 1.0F);
    transport->link().transport->all_reduce(sum, {.name = "sum"});
    EXPECT_EQ(sum.item<float>(), 2);
  });
}

void connect_beside_a_stranger(const std::string& word) {
  for (const ProcessResult& rank : connect_beside(word)) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
  }
}

TEST(Setup, Fault152_ASilentStrangerAmongGloosPairsIsFoundAndAllConnectAgain) {
  connect_beside_a_stranger("");
}

TEST(Setup, Fault152_AStrangerWhoSpeaksAmongGloosPairsIsFoundAndAllConnectAgain) {
  connect_beside_a_stranger(std::string(4096, 'x'));
}

/// One of Gloo's messages: its head, and nothing behind it.
std::string gloo_message(std::uint64_t kind, std::uint64_t tag, std::uint64_t bytes) {
  const std::array<std::uint64_t, 6> head{48 + bytes, kind, tag, 0, bytes, 0};
  return {reinterpret_cast<const char*>(head.data()), sizeof(head)};
}

TEST(Setup, Fault152_WhoKnowsGloosFormatEndsARankAndNothingMore) {
  constexpr std::uint64_t kToABuffer = 1;
  int ended = 0;
  for (const ProcessResult& rank :
       connect_beside(gloo_message(kToABuffer, 77, std::uint64_t{1} << 40))) {
    EXPECT_FALSE(rank.killed_by_test);
    if (rank.exit_code == 128 + SIGABRT) {
      EXPECT_THAT(rank.output, HasSubstr("has said what no rank says"));
      ++ended;
    } else {
      // The other one, unless its stranger was as quick.
      EXPECT_EQ(rank.exit_code, 1) << rank.output;
      EXPECT_THAT(rank.output, HasSubstr("could not connect to its peers"));
    }
  }
  EXPECT_GE(ended, 1);
}

TEST(Setup, Fault152_OtherUsersWhoAreConnectedAreNamed) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be another user";
  }
  const base::Descriptor door = net::listen_on("127.0.0.1", 0);
  const std::uint16_t port = net::port_of(door.get());
  const net::Connection own =
      net::connect_to(net::resolve("127.0.0.1", port).addresses.front(), milliseconds(1000));
  EXPECT_EQ(net::other_users_at({port}), "") << "this user's";
  std::array<int, 2> told{};
  ASSERT_EQ(::pipe(told.data()), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    const bool is_other = ::setuid(12345) == 0;
    const net::Connection connection =
        net::connect_to(net::resolve("127.0.0.1", port).addresses.front(), milliseconds(1000));
    const char word = is_other && connection.error == 0 ? 'y' : 'n';
    (void)!::write(told[1], &word, 1);
    ::pause();
  }
  char word = 'n';
  EXPECT_EQ(::read(told[0], &word, 1), 1);
  EXPECT_EQ(word, 'y');
  EXPECT_EQ(net::other_users_at({port}), "user 12345");
  EXPECT_EQ(net::other_users_at({static_cast<std::uint16_t>(port + 1)}), "");
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace fsdp
