// SPDX-License-Identifier: Apache-2.0
#include "net/reach.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "fsdp/base/error.hpp"
#include "net/network.hpp"

namespace fsdp::net {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

ReachOptions options(const std::string& host, std::uint16_t port, milliseconds limit) {
  return {.host = host,
          .port = port,
          .limit = limit,
          .who = "rank 1 of 2",
          .whom = "rank 0",
          .hint = "MASTER_ADDR says where"};
}

/// A port of which nothing listens.
std::uint16_t closed_port() { return port_of(listen_on("127.0.0.1", 0).get()); }

struct Refusal {
  ErrorCode code{};
  std::string text = {};
  milliseconds duration{};
};

Refusal refusal(const ReachOptions& tried) {
  const auto start = std::chrono::steady_clock::now();
  Refusal refusal;
  try {
    reach(tried);
    ADD_FAILURE() << "reached";
  } catch (const Error& error) {
    refusal.code = error.code();
    refusal.text = error.text();
  }
  refusal.duration =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  return refusal;
}

TEST(Reach, Fault124_LiteralsAndNamesOfBothFamiliesConnect) {
  const base::Descriptor listener = listen_on("", 0);
  const std::uint16_t port = port_of(listener.get());
  EXPECT_EQ(reach(options("127.0.0.1", port, milliseconds(2000))), "127.0.0.1");
  EXPECT_THAT(reach(options("localhost", port, milliseconds(2000))), AnyOf("127.0.0.1", "::1"));
  if (source_address_towards("::1")) {
    EXPECT_EQ(reach(options("::1", port, milliseconds(2000))), "::1");
  }
}

TEST(Reach, Fault124_ANameIsTriedInBothFamilies) {
  const base::Descriptor listener = listen_on("127.0.0.1", 0);  // IPv4 only
  EXPECT_EQ(reach(options("localhost", port_of(listener.get()), milliseconds(2000))), "127.0.0.1");
}

TEST(Reach, Fault124_AClosedPortFailsInTimeWithAddressAndErrno) {
  const std::uint16_t port = closed_port();
  const Refusal found = refusal(options("127.0.0.1", port, milliseconds(600)));
  EXPECT_EQ(found.code, ErrorCode::kTimeout);
  EXPECT_LT(found.duration, milliseconds(600));
  EXPECT_GE(found.duration, milliseconds(300)) << "rank 0 may still come";
  EXPECT_THAT(
      found.text,
      AllOf(HasSubstr("rank 1 of 2 cannot reach rank 0 at 127.0.0.1:" + std::to_string(port)),
            HasSubstr(std::to_string(port) + ": Connection refused (errno 111)"),
            HasSubstr("MASTER_ADDR says where")));
  if (source_address_towards("::1")) {
    EXPECT_THAT(refusal(options("::1", port, milliseconds(300))).text,
                HasSubstr("[::1]:" + std::to_string(port) + ": Connection refused (errno 111)"));
  }
}

TEST(Reach, Fault124_AnUnknownNameFailsInTime) {
  const Refusal found = refusal(options("no-such-host.invalid", 1, milliseconds(600)));
  EXPECT_EQ(found.code, ErrorCode::kIo);
  EXPECT_LT(found.duration, milliseconds(600));
  EXPECT_THAT(found.text, HasSubstr("the name 'no-such-host.invalid' cannot be resolved: "));
}

TEST(Reach, AListenerMayComeLater) {
  const std::uint16_t port = closed_port();
  base::Descriptor listener;
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    listener = listen_on("127.0.0.1", port);
  });
  EXPECT_EQ(reach(options("127.0.0.1", port, milliseconds(5000))), "127.0.0.1");
  late.join();
}

TEST(Reach, Fault132_TheNoticeComesEarlyAndThenMoreSeldom) {
  WaitingNotice notice;
  std::vector<int> due;
  for (int second = 0; second < 300; ++second) {
    if (notice.is_due(milliseconds(second * 1000))) {
      due.push_back(second);
    }
  }
  EXPECT_EQ(due, (std::vector<int>{2, 4, 8, 16, 32, 64, 124, 184, 244}));
}

TEST(ListenOn, Fault123_ABusyPortNamesItsOwner) {
  const base::Descriptor first = listen_on("127.0.0.1", 0);
  const std::uint16_t port = port_of(first.get());
  for (const char* host : {"127.0.0.1", ""}) {
    try {
      listen_on(host, port);
      ADD_FAILURE() << "listens twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.text(), AllOf(HasSubstr("port " + std::to_string(port)),
                                      HasSubstr("Address already in use"),
                                      HasSubstr("held by process " + std::to_string(::getpid()))));
    }
  }
  EXPECT_EQ(owner_of_port(closed_port()), "");
}

TEST(Address, IsWrittenWithBracketsWhereNeeded) {
  EXPECT_EQ(resolve("127.0.0.1", 80).addresses.at(0).text(), "127.0.0.1:80");
  EXPECT_EQ(resolve("fd00::1", 80).addresses.at(0).text(), "[fd00::1]:80");
  EXPECT_EQ(endpoint_text("node0", 1), "node0:1");
  EXPECT_TRUE(resolve("127.0.1.1", 1).addresses.at(0).is_loopback());
  EXPECT_TRUE(resolve("::1", 1).addresses.at(0).is_loopback());
  EXPECT_FALSE(resolve("10.0.0.1", 1).addresses.at(0).is_loopback());
}

}  // namespace
}  // namespace fsdp::net
