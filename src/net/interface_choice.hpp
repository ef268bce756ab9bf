// SPDX-License-Identifier: Apache-2.0
/// Which of this host's addresses the ranks on other hosts are told to connect to.
#pragma once

#include <string>
#include <vector>

#include "net/network.hpp"

namespace fsdp::net {

/// An address to listen on.
struct InterfaceChoice {
  std::string interface = {};
  std::string address = {};  ///< a literal
  std::string reason = {};   ///< "the route to 10.0.0.1", "GLOO_SOCKET_IFNAME"
};

/// The interfaces that GLOO_SOCKET_IFNAME names, with commas between several.
/// @throws Error kInvalidArgument naming the variable, its value and the interfaces that exist,
/// when one of them does not exist, is down, or has no address. "^lo", NCCL's way to exclude one,
/// is no name either
std::vector<InterfaceChoice> choose_named_interfaces(const std::string& names, int family,
                                                     const std::vector<Interface>& interfaces);

/// The addresses for a job whose rank 0 was reached at `master`, a literal: the interfaces that
/// GLOO_SOCKET_IFNAME names, else the one from which packets to `master` leave, in its family.
/// @throws Error kInvalidArgument as above, kIo when there is no route
std::vector<InterfaceChoice> choose_interfaces(const std::string& master);

/// Checks GLOO_SOCKET_IFNAME without choosing, so that a wrong name is an error before any wait.
/// @throws Error kInvalidArgument as above
void check_interface_variable();

}  // namespace fsdp::net
