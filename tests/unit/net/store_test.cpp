// SPDX-License-Identifier: Apache-2.0
/// The job's store: what it remembers, whom it lets in, and what strangers can do to it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"
#include "net/door.hpp"
#include "net/key_table.hpp"
#include "net/network.hpp"
#include "net/store_client.hpp"
#include "net/store_server.hpp"
#include "net/store_wire.hpp"

namespace fsdp::net {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const std::string kSecret = "the secret of this job";

/// A store on a TCP port of this host.
class Store {
 public:
  explicit Store(StoreServerOptions options = {.secret = kSecret})
      : server(Door(listen()), std::move(options)) {}

  Connection connect() const { return connect_to(resolve_port(), seconds(5)); }
  void knock(const Connection& connection) const {
    const Address address = resolve_port();
    EXPECT_EQ(::connect(connection.socket.get(),
                        reinterpret_cast<const sockaddr*>(&address.storage), address.length),
              0);
  }
  Welcome greet(const Connection& connection, const std::string& secret = kSecret) const {
    return greet_store(connection.socket.get(), secret, Clock::now() + seconds(20));
  }
  std::unique_ptr<StoreClient> enter() const {
    Connection connection = connect();
    EXPECT_EQ(greet(connection), Welcome::kAdmitted);
    return std::make_unique<StoreClient>(std::move(connection.socket));
  }

 private:
  Address resolve_port() const { return resolve("127.0.0.1", port_).addresses.front(); }
  base::Descriptor listen() {
    base::Descriptor socket = listen_on("127.0.0.1", 0);
    port_ = port_of(socket.get());
    return socket;
  }
  std::uint16_t port_ = 0;

 public:
  StoreServer server;
};

/// Whether the other end has closed the connection. @blocks until it says something
bool is_closed(int socket) {
  std::array<char, 4096> bytes;
  ssize_t count = 0;
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) & ~O_NONBLOCK);
  while ((count = ::recv(socket, bytes.data(), bytes.size(), 0)) > 0) {
  }
  return count == 0 || errno == ECONNRESET;
}

TEST(JobStore, RemembersAndCounts) {
  const Store store;
  const auto one = store.enter();
  const auto other = store.enter();
  EXPECT_EQ(one->get("colour"), std::nullopt);
  one->set("colour", "blue");
  EXPECT_EQ(other->get("colour"), "blue");
  EXPECT_TRUE(other->check({"colour"}));
  EXPECT_FALSE(other->check({"colour", "shape"}));
  EXPECT_EQ(one->add("ranks", 0), 0);
  EXPECT_FALSE(one->check({"ranks"})) << "a question writes nothing";
  EXPECT_EQ(one->add("ranks", 2), 2);
  EXPECT_EQ(other->add("ranks", -3), -1);
  EXPECT_EQ(other->get("ranks"), "-1");
  EXPECT_EQ(one->compare_set("first", "", "one"), "one");
  EXPECT_EQ(other->compare_set("first", "", "other"), "one");
  EXPECT_EQ(other->compare_set("first", "one", "other"), "other");
  EXPECT_EQ(other->compare_set("none", "one", "other"), "one");
  EXPECT_EQ(one->count(), 3);
  EXPECT_TRUE(one->erase("colour"));
  EXPECT_FALSE(one->erase("colour"));
  EXPECT_EQ(one->count(), 2);
  one->set("", std::string("\0zero", 5));
  EXPECT_EQ(other->get(""), std::string("\0zero", 5));
}

TEST(JobStore, ServesItsOwnProcessToo) {
  Store store;
  StoreClient own(store.server.take_own_end());
  own.set("colour", "blue");
  EXPECT_EQ(store.enter()->get("colour"), "blue");
}

TEST(JobStore, Fault152_WhoDoesNotKnowTheSecretIsNotHeard) {
  const Store store;
  const Connection stranger = store.connect();
  EXPECT_EQ(store.greet(stranger, "another secret"), Welcome::kRefused);
  EXPECT_TRUE(is_closed(stranger.socket.get()));
  const Connection guest = store.connect();
  EXPECT_EQ(store.greet(guest, ""), Welcome::kRefused);
  // What would write a key without asking.
  const Connection rude = store.connect();
  std::string bytes(200, 's');
  EXPECT_GT(::send(rude.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(is_closed(rude.socket.get()));
  EXPECT_EQ(store.enter()->count(), 0);
}

TEST(JobStore, Fault152_AProofIsGoodForOneConnection) {
  const Store store;
  const auto greeting_of = [](const Connection& connection) {
    std::string bytes(wire::kGreeting.size() + wire::kRandomBytes, '\0');
    std::size_t filled = 0;
    while (filled < bytes.size()) {
      const ssize_t count =
          ::recv(connection.socket.get(), bytes.data() + filled, bytes.size() - filled, 0);
      filled += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return bytes.substr(wire::kGreeting.size());
  };
  const Connection first = store.connect();
  const std::string of_client(wire::kRandomBytes, 'r');
  const base::Digest proof = wire::prove(kSecret, "client", greeting_of(first), of_client);
  const Connection second = store.connect();
  EXPECT_NE(greeting_of(second), std::string(wire::kRandomBytes, '\0'));
  const std::string hello = of_client + std::string(base::view_of(proof));
  EXPECT_GT(::send(second.socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL), 0);
  std::string answer(1, '\0');
  ::fcntl(second.socket.get(), F_SETFL, 0);
  EXPECT_EQ(::recv(second.socket.get(), answer.data(), 1, 0), 1);
  EXPECT_EQ(answer.front(), wire::kNo);
}

TEST(JobStore, Fault152_AServerThatDoesNotKnowTheSecretIsNotBelieved) {
  const Store impostor({.secret = "what somebody has guessed"});
  EXPECT_EQ(impostor.greet(impostor.connect()), Welcome::kRefused);
}

TEST(JobStore, Fault152_WhatItHoldsIsBounded) {
  const Store store({.secret = kSecret, .max_bytes = 1000});
  const auto client = store.enter();
  client->set("a", std::string(900, 'x'));
  try {
    client->set("b", std::string(100, 'x'));
    ADD_FAILURE() << "held 1002 bytes";
  } catch (const StoreError& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds 901 bytes and takes 1000 at most"));
  }
  client->set("a", std::string(10, 'x'));
  client->set("b", std::string(100, 'x'));
  EXPECT_THROW(client->set("c", std::string(wire::kMaxBytes, 'x')), StoreError);
  EXPECT_EQ(client->count(), 2);
}

TEST(JobStore, Fault152_WhatIsNoRequestEndsTheConnection) {
  KeyTable table(1000);
  for (const std::string& request :
       {std::string(), std::string("?"), std::string("s"), std::string("s\1\0\0\0", 5),
        std::string("g\377\377\377\377", 5), std::string("a\1\0\0\0k\1\0\0\0x", 11)}) {
    EXPECT_EQ(table.answer(request), std::nullopt) << request;
  }
  EXPECT_EQ(table.bytes(), 0U);
}

TEST(JobStore, Fault152_OnceTheDoorIsClosedNobodyNewIsLetIn) {
  Store store;
  const auto early = store.enter();
  const Connection half_in = store.connect();
  store.server.close_door();
  EXPECT_NE(store.connect().error, 0);
  EXPECT_TRUE(is_closed(half_in.socket.get()));
  early->set("still", "served");
  EXPECT_EQ(early->get("still"), "served");
}

TEST(JobStore, Fault152_StrangersWhoSayNothingMakeRoomForRanks) {
  const Store store({.secret = kSecret, .max_strangers = 4});
  std::vector<Connection> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(store.connect());
    EXPECT_EQ(strangers.back().error, 0);
  }
  const auto rank = store.enter();
  rank->set("here", "yes");
  EXPECT_TRUE(is_closed(strangers.front().socket.get()));
}

/// As if a neighbour had used up the descriptors of this process.
TEST(JobStore, Fault151_WithoutDescriptorsItGoesOn) {
  const Store store;
  const auto rank = store.enter();
  Connection late;
  late.socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 64;
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::vector<base::Descriptor> rest;
  do {
    rest.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (rest.back().get() >= 0);
  // In the backlog, where the server cannot accept it.
  store.knock(late);
  rank->set("still", "served");
  EXPECT_EQ(rank->get("still"), "served");
  rest.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(store.greet(late), Welcome::kAdmitted);
}

/// A path of the test's own, in this user's directory.
std::string own_path(const std::string& name) {
  return private_directory() + "/test-" + std::to_string(::getpid()) + "-" + name;
}

TEST(PrivateDoor, Fault152_NoOtherUserCanReachIt) {
  struct stat found{};
  ASSERT_EQ(::lstat(private_directory().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0700U);
  EXPECT_EQ(found.st_uid, ::geteuid());
  const std::string path = private_path(29500);
  EXPECT_EQ(path.substr(0, private_directory().size()), private_directory());
  EXPECT_THAT(path, testing::EndsWith("-29500"));
}

TEST(PrivateDoor, OneAtATimeListensThere) {
  const std::string path = own_path("one");
  EXPECT_EQ(connect_to_path(path).error, ENOENT);
  Door door = open_private_door(path);
  EXPECT_GE(door.socket(), 0);
  EXPECT_EQ(connect_to_path(path).error, 0);
  EXPECT_LT(open_private_door(path).socket(), 0);
  door.close();
  EXPECT_EQ(connect_to_path(path).error, ENOENT);
  EXPECT_GE(open_private_door(path).socket(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PrivateDoor, WhatAKilledProcessLeftThereGoes) {
  const std::string path = own_path("left");
  if (const pid_t child = ::fork(); child == 0) {
    Door door = open_private_door(path);
    ::_exit(door.socket() >= 0 ? 0 : 1);  // no destructor
  } else {
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(connect_to_path(path).error, ECONNREFUSED);
  EXPECT_GE(open_private_door(path).socket(), 0);
}

TEST(PrivateDoor, AStoreIsServedThereWithoutASecret) {
  const std::string path = own_path("served");
  StoreServer server(open_private_door(path), {});
  Connection connection = connect_to_path(path);
  ASSERT_EQ(connection.error, 0);
  EXPECT_EQ(greet_store(connection.socket.get(), "", Clock::now() + seconds(20)),
            Welcome::kAdmitted);
  StoreClient client(std::move(connection.socket));
  client.set("colour", "blue");
  server.close_door();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(client.get("colour"), "blue");
}

TEST(HoldPort, KeepsItFromAllWhoDoNotAskForIt) {
  const base::Descriptor held = hold_port(0);
  const std::uint16_t port = port_of(held.get());
  EXPECT_THROW(hold_port(port), Error);
  const base::Descriptor rank_zero = listen_on("", port);
  EXPECT_EQ(port_of(rank_zero.get()), port);
  EXPECT_THROW(listen_on("", port), Error);
}

}  // namespace
}  // namespace fsdp::net
