// SPDX-License-Identifier: Apache-2.0
/// Names, addresses, ports and interfaces, as far as ranks need them to meet. Nothing here waits
/// for longer than it is told to.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/descriptor.hpp"

namespace fsdp::net {

/// An IPv4 or IPv6 address with a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  /// The address without its port, "10.0.0.1" or "fe80::1%eth0".
  std::string host() const;
  /// "10.0.0.1:29500" or "[::1]:29500".
  std::string text() const;
  int family() const { return storage.ss_family; }
  bool is_loopback() const;
};

/// "host:port", with brackets around an IPv6 address.
std::string endpoint_text(const std::string& host, std::uint16_t port);

/// What a look-up of a name found.
struct Resolution {
  std::vector<Address> addresses = {};
  std::string failure = {};  ///< why there are none
};

/// The addresses of a host. A literal is used as given, without a name service.
/// @blocks as long as the system's resolver does
Resolution resolve(const std::string& host, std::uint16_t port);

/// The end of one try to connect: the socket, or errno.
struct Connection {
  base::Descriptor socket = {};
  int error = 0;
};

/// Connects to one address. @blocks up to `limit`, then with ETIMEDOUT
Connection connect_to(const Address& address, std::chrono::milliseconds limit);

/// Listens on one address, or with `host` empty on all addresses of this host, IPv4 and IPv6; port
/// 0 chooses a free one. Close-on-exec.
/// @throws Error kIo that says which process holds the port
base::Descriptor listen_on(const std::string& host, std::uint16_t port);

/// Keeps `port` of this host's loopback interface, or with 0 a free one, from all who do not ask
/// for it by its number: nobody listens there until one does. Close-on-exec.
/// @throws Error kIo that says which process holds the port
base::Descriptor hold_port(std::uint16_t port);

/// The port that a socket has.
std::uint16_t port_of(int socket);

/// "process 12 (python3)", "a process of user 1000", or empty when nobody listens there.
std::string owner_of_port(std::uint16_t port);

/// "user 1000, user 1001": other users of this host who are connected to one of these ports of it;
/// empty without any. The kernel says so: nobody can give himself for another.
std::string other_users_at(const std::set<std::uint16_t>& ports);

/// The address of this host that packets to `host`, a literal, would leave from.
std::optional<Address> source_address_towards(const std::string& host);

/// A network interface of this host.
struct Interface {
  std::string name = {};
  bool is_up = false;
  std::vector<Address> addresses = {};
};

std::vector<Interface> list_interfaces();

/// "lo (127.0.0.1, ::1), eth0 (10.0.0.2)".
std::string to_text(const std::vector<Interface>& interfaces);

}  // namespace fsdp::net
