// SPDX-License-Identifier: Apache-2.0
/// Two hosts: network namespaces with a cable between them. Needs root and `ip`; else it is
/// skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "support/command.hpp"

namespace fsdp {
namespace {

using test::CommandResult;
using test::run_command;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kBodyVariable = "FSDP_TEST_HOST";
constexpr const char* kTransportVariable = "FSDP_TEST_TRANSPORT";

/// A host with its own loopback, one card "card0" and its own idea of what names mean.
class Host {
 public:
  Host(const std::string& letter, std::string address, const std::string& hosts_file)
      : name_("fsdp" + std::to_string(::getpid()) + letter), address_(std::move(address)) {
    stands_ = ip({"netns", "add", name_});
    if (stands_) {
      fs::create_directories("/etc/netns/" + name_);
      std::ofstream("/etc/netns/" + name_ + "/hosts") << hosts_file;
    }
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    if (stands_) {
      ip({"netns", "delete", name_});
      std::error_code ignored;
      fs::remove_all("/etc/netns/" + name_, ignored);
      fs::remove("/etc/netns", ignored);  // where it is empty
    }
  }

  bool stands() const { return stands_; }
  bool plug_into(const Host& other) const {
    return ip({"link", "add", "card0", "netns", name_, "type", "veth", "peer", "name", "card0",
               "netns", other.name_}) &&
           set_up() && other.set_up();
  }
  /// Runs this test's other side as a rank of `ranks`, half of them on each host.
  CommandResult run(int rank, int ranks = 2, const std::string& transport = "auto") const {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    return run_command(
        {"ip", "netns", "exec", name_, fs::read_symlink("/proc/self/exe"),
         std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()},
        {{kBodyVariable, "1"},
         {"RANK", std::to_string(rank)},
         {"WORLD_SIZE", std::to_string(ranks)},
         {"LOCAL_RANK", std::to_string(rank % (ranks / 2))},
         {"LOCAL_WORLD_SIZE", std::to_string(ranks / 2)},
         {kTransportVariable, transport},
         {"OMP_NUM_THREADS", "1"},
         {"MASTER_ADDR", "fsdp-master"},
         {"MASTER_PORT", "23456"},
         {"FSDP_SETUP_TIMEOUT", "15"},
         {"FSDP_TIMEOUT", "15"},
         {"FSDP_LOG", "debug"}});
  }

 private:
  static bool ip(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ip");
    return run_command(arguments).code == 0;
  }
  bool set_up() const {
    return ip({"-n", name_, "address", "add", address_ + "/24", "dev", "card0"}) &&
           ip({"-n", name_, "link", "set", "lo", "up"}) &&
           ip({"-n", name_, "link", "set", "card0", "up"});
  }

  const std::string name_;
  const std::string address_;
  bool stands_ = false;
};

TEST(TwoHosts, Fault125_AHostNameThatMeansLoopbackDoesNotMisleadTheOthers) {
  if (std::getenv(kBodyVariable) != nullptr) {
    const World world = init();
    at::Tensor sum = at::full({1}, static_cast<float>(world.rank() + 1));
    world.transport().all_reduce(sum, {.name = "sum"});
    EXPECT_EQ(sum.item<float>(), 3);
    return;
  }
  if (::geteuid() != 0) {
    GTEST_SKIP() << "network namespaces need root";
  }
  // As Debian writes it: on rank 0's own host its name is a loopback address.
  const Host first("a", "10.77.0.1", "127.0.0.1 localhost\n127.0.1.1 fsdp-master\n");
  const Host second("b", "10.77.0.2", "127.0.0.1 localhost\n10.77.0.1 fsdp-master\n");
  if (!first.stands() || !second.stands() || !first.plug_into(second)) {
    GTEST_SKIP() << "`ip netns` and veth are not available here";
  }
  auto other = std::async(std::launch::async, [&] { return second.run(1); });
  const CommandResult zero = first.run(0);
  const CommandResult one = other.get();
  EXPECT_EQ(zero.code, 0) << zero.out << zero.err;
  EXPECT_EQ(one.code, 0) << one.out << one.err;
  EXPECT_THAT(zero.err,
              HasSubstr("rank 0 listens on 10.77.0.1 (card0), from the route to 10.77.0.1"));
  EXPECT_THAT(one.err,
              HasSubstr("rank 1 listens on 10.77.0.2 (card0), from the route to 10.77.0.1"));
}

/// Bytes that this host's card has received.
std::int64_t received_bytes() {
  std::ifstream devices("/proc/self/net/dev");
  for (std::string line; std::getline(devices, line);) {
    if (const auto colon = line.find("card0:"); colon != std::string::npos) {
      return std::stoll(line.substr(colon + 6));
    }
  }
  return -1;
}

/// The bytes that reach this host while all ranks run `collective`: the least of three times, as
/// the card also counts what TCP sends again, which it does on a busy machine.
std::int64_t bytes_of(const World& world, const std::function<void()>& collective) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int time = 0; time < 3; ++time) {
    world.barrier();
    const std::int64_t before = received_bytes();
    world.barrier();  // nobody begins before all have looked
    collective();
    world.barrier();
    least = std::min(least, received_bytes() - before);
  }
  return least;
}

/// Until so many bytes have reached this host, or for 20 s: nobody waits for a collective
/// meanwhile. Returns how many are missing.
std::int64_t await_bytes(std::int64_t total) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (received_bytes() < total && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::max<std::int64_t>(0, total - received_bytes());
}

/// Each slice, and each sum, has to reach the other host `times`.
void expect_crossings(const World& world, int times) {
  constexpr std::int64_t kNumel = 1 << 20;
  constexpr std::int64_t kBytes = 4 * kNumel;
  const comm::Link& group = world.link();
  const at::Tensor slice = at::full({kNumel}, static_cast<float>(world.rank()));
  at::Tensor all = at::zeros({4 * kNumel});
  at::Tensor sum = at::zeros({kNumel});
  const auto expect = [&](const char* what, std::int64_t slices, std::int64_t bytes) {
    const double crossings = static_cast<double>(bytes) / static_cast<double>(slices * kBytes);
    std::printf("%s: %.3f\n", what, crossings);
    EXPECT_GE(crossings, times) << what;
    EXPECT_LE(crossings, times * 1.1) << what;
  };
  expect("all-gather", 2,
         bytes_of(world, [&] { group.transport->all_gather(all, slice, {})->wait(); }));
  EXPECT_EQ(all.sum().item<float>(), 6 * kNumel);
  expect("reduce-scatter", 2, bytes_of(world, [&] {
           const std::int64_t before = received_bytes();
           world.barrier();
           const auto work = group.transport->reduce_scatter(sum, all, {}, {});
           EXPECT_EQ(await_bytes(before + 2 * times * kBytes), 0) << "crossed before wait()";
           work->wait();
         }));
  EXPECT_TRUE(sum.eq(4 * world.rank()).all().item<bool>());
  const std::int64_t broadcast = bytes_of(
      world, [&] { group.transport->broadcast(sum, /*root=*/1, {.name = "start"})->wait(); });
  if (world.rank() >= 2) {
    expect("broadcast", 1, broadcast);
  }
  EXPECT_TRUE(sum.eq(4).all().item<bool>());
}

TEST(TwoHosts, EachByteCrossesFromHostToHostOnce) {
  if (std::getenv(kBodyVariable) != nullptr) {
    const World world = init({.transport = std::getenv(kTransportVariable)});
    // Over gloo alone each slice goes to both ranks of the other host: so much for the counters.
    expect_crossings(world, world.transport().traits().name == "gloo" ? 2 : 1);
    std::printf("transport %s\n", world.transport().traits().name.c_str());
    return;
  }
  if (::geteuid() != 0) {
    GTEST_SKIP() << "network namespaces need root";
  }
  const std::string names = "127.0.0.1 localhost\n10.78.0.1 fsdp-master\n";
  const Host first("a", "10.78.0.1", names);
  const Host second("b", "10.78.0.2", names);
  if (!first.stands() || !second.stands() || !first.plug_into(second)) {
    GTEST_SKIP() << "`ip netns` and veth are not available here";
  }
  for (const std::string transport : {"auto", "gloo"}) {
    std::vector<std::future<CommandResult>> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        return (rank < 2 ? first : second).run(rank, 4, transport);
      }));
    }
    for (auto& rank : ranks) {
      const CommandResult result = rank.get();
      EXPECT_EQ(result.code, 0) << result.out << result.err;
      EXPECT_THAT(result.out,
                  HasSubstr(transport == "auto" ? "transport shm+gloo" : "transport gloo"));
    }
  }
}

}  // namespace
}  // namespace fsdp
