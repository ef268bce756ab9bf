// SPDX-License-Identifier: Apache-2.0
/// Two hosts: network namespaces with a cable between them. Needs root and `ip`; else it is
/// skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "fsdp/comm/communicator.hpp"
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
  CommandResult run(int rank) const {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    return run_command(
        {"ip", "netns", "exec", name_, fs::read_symlink("/proc/self/exe"),
         std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()},
        {{kBodyVariable, "1"},
         {"RANK", std::to_string(rank)},
         {"WORLD_SIZE", "2"},
         {"LOCAL_RANK", "0"},
         {"LOCAL_WORLD_SIZE", "1"},
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
    world.communicator().all_reduce(sum, {.name = "sum"});
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

}  // namespace
}  // namespace fsdp
