// SPDX-License-Identifier: Apache-2.0
#include "net/interface_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "fsdp/base/error.hpp"

namespace fsdp::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Address address(const char* literal) { return resolve(literal, 0).addresses.at(0); }

std::vector<Interface> host() {
  return {{.name = "lo", .is_up = true, .addresses = {address("127.0.0.1"), address("::1")}},
          {.name = "eth0",
           .is_up = true,
           .addresses = {address("10.0.0.2"), address("fe80::2"), address("fd00::2")}},
          {.name = "eth1", .is_up = false, .addresses = {address("10.1.0.2")}},
          {.name = "ib0", .is_up = true}};
}

std::string refusal(const std::string& names) {
  try {
    choose_named_interfaces(names, AF_INET, host());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.text();
  }
  return "no error";
}

TEST(InterfaceChoice, Fault125_ABadNameNamesTheVariableAndWhatThereIs) {
  for (const char* names : {"^lo", "eth7", "eth1", "ib0", "eth0,eth7", "eth0 ", ","}) {
    EXPECT_THAT(refusal(names),
                AllOf(HasSubstr(std::string("GLOO_SOCKET_IFNAME is '") + names + "'"),
                      HasSubstr("lo (127.0.0.1, ::1), eth0 (10.0.0.2, fe80::2, fd00::2)")));
  }
  EXPECT_THAT(refusal("^lo"), HasSubstr("To exclude one is not possible"));
  EXPECT_THAT(refusal("eth1"), HasSubstr("'eth1' is down"));
}

TEST(InterfaceChoice, Fault125_ANamedInterfaceGivesAnAddressOfTheMastersFamily) {
  EXPECT_EQ(choose_named_interfaces("eth0", AF_INET, host()).at(0).address, "10.0.0.2");
  EXPECT_EQ(choose_named_interfaces("eth0", AF_INET6, host()).at(0).address, "fd00::2");
  const auto both = choose_named_interfaces("lo,eth0", AF_INET, host());
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].address, "127.0.0.1");
  EXPECT_EQ(both[1].interface, "eth0");
}

TEST(InterfaceChoice, Fault125_TheRouteToTheMasterDecides) {
  ::unsetenv("GLOO_SOCKET_IFNAME");
  const auto loopback = choose_interfaces("127.0.0.1");
  ASSERT_EQ(loopback.size(), 1u);
  EXPECT_EQ(loopback[0].interface, "lo");
  EXPECT_EQ(loopback[0].address, "127.0.0.1");
  EXPECT_EQ(loopback[0].reason, "the route to 127.0.0.1");
  for (const Interface& interface : list_interfaces()) {
    for (const Address& own : interface.addresses) {
      if (interface.is_up && !own.is_loopback() && own.host().find('%') == std::string::npos) {
        EXPECT_EQ(choose_interfaces(own.host()).at(0).address, own.host());
        EXPECT_EQ(choose_interfaces(own.host()).at(0).interface, interface.name);
      }
    }
  }
}

TEST(InterfaceChoice, TheVariableIsCheckedBeforeAnyWait) {
  ::setenv("GLOO_SOCKET_IFNAME", "^lo", 1);
  EXPECT_THROW(check_interface_variable(), Error);
  EXPECT_THROW(choose_interfaces("127.0.0.1"), Error);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_NO_THROW(check_interface_variable());
  ::unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_NO_THROW(check_interface_variable());
}

}  // namespace
}  // namespace fsdp::net
