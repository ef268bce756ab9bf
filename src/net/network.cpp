// SPDX-License-Identifier: Apache-2.0
#include "net/network.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

Address make_address(const sockaddr* source, socklen_t length) {
  Address address;
  std::memcpy(&address.storage, source, length);
  address.length = length;
  return address;
}

int look_up(const std::string& host, std::uint16_t port, int flags, AddressList& list) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* name = host.empty() ? nullptr : host.c_str();
  const int code = ::getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
  list.reset(code == 0 ? found : nullptr);
  return code;
}

std::vector<Address> copy(const AddressList& list) {
  std::vector<Address> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    addresses.push_back(make_address(entry->ai_addr, entry->ai_addrlen));
  }
  return addresses;
}

[[noreturn]] void fail_to_take_port(const std::string& what, std::uint16_t port, int cause) {
  const std::string owner = cause == EADDRINUSE ? owner_of_port(port) : "";
  fail(ErrorCode::kIo, what, "port ", port, ": ", std::strerror(cause),
       owner.empty() ? "" : ", it is held by " + owner);
}

/// A listening socket, or none with errno set.
base::Descriptor try_to_listen(const Address& address) {
  base::Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  if (socket.get() >= 0) {
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.family() == AF_INET6) {
      ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
  }
  if (socket.get() < 0 || ::bind(socket.get(), generic(address), address.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    const int cause = errno;
    socket.reset();
    errno = cause;
  }
  return socket;
}

}  // namespace

std::string Address::host() const {
  std::array<char, NI_MAXHOST> text{};
  const int code =
      ::getnameinfo(generic(*this), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "an unknown address";
}

std::string Address::text() const {
  // The port lies at the same place in both kinds of address.
  const auto port = ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  return endpoint_text(host(), port);
}

bool Address::is_loopback() const {
  const std::string literal = host();
  return literal.starts_with("127.") || literal == "::1" || literal.starts_with("::ffff:127.");
}

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Resolution resolve(const std::string& host, std::uint16_t port) {
  AddressList list(nullptr, &::freeaddrinfo);
  if (look_up(host, port, AI_NUMERICHOST, list) == 0) {
    return {.addresses = copy(list)};
  }
  const int code = look_up(host, port, 0, list);
  if (code != 0) {
    const std::string cause = code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
    return {.failure = "the name '" + host + "' cannot be resolved: " + cause};
  }
  return {.addresses = copy(list)};
}

Connection connect_to(const Address& address, std::chrono::milliseconds limit) {
  Connection connection;
  connection.socket.reset(
      ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.socket.get() < 0) {
    connection.error = errno;
    return connection;
  }
  if (::connect(connection.socket.get(), generic(address), address.length) == 0) {
    return connection;
  }
  connection.error = errno;
  if (errno == EINPROGRESS) {
    pollfd ready{connection.socket.get(), POLLOUT, 0};
    connection.error = ETIMEDOUT;
    if (::poll(&ready, 1, static_cast<int>(limit.count())) == 1) {
      socklen_t length = sizeof(connection.error);
      ::getsockopt(connection.socket.get(), SOL_SOCKET, SO_ERROR, &connection.error, &length);
    }
  }
  if (connection.error != 0) {
    connection.socket.reset();
  }
  return connection;
}

base::Descriptor listen_on(const std::string& host, std::uint16_t port) {
  AddressList list(nullptr, &::freeaddrinfo);
  const int code = look_up(host, port, AI_NUMERICHOST | AI_PASSIVE, list);
  FSDP_CHECK(code == 0, ErrorCode::kIo, "cannot listen on '", host, "': ", ::gai_strerror(code));
  std::vector<Address> addresses = copy(list);
  // The IPv6 wildcard takes IPv4 as well; the IPv4 one is for hosts without IPv6.
  std::partition(addresses.begin(), addresses.end(),
                 [](const Address& address) { return address.family() == AF_INET6; });
  int cause = 0;
  for (const Address& address : addresses) {
    base::Descriptor socket = try_to_listen(address);
    if (socket.get() >= 0) {
      return socket;
    }
    cause = errno;
    if (cause == EADDRINUSE) {
      break;
    }
  }
  fail_to_take_port("cannot listen on " + (host.empty() ? "" : host + " "), port, cause);
}

base::Descriptor hold_port(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  base::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    fail_to_take_port("cannot hold ", port, errno);
  }
  // Only now: nobody else has it, and those who know its number may share it.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return socket;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  FSDP_CHECK(::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) == 0,
             ErrorCode::kIo, "a socket has no address: ", std::strerror(errno));
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::optional<Address> source_address_towards(const std::string& host) {
  constexpr std::uint16_t kAnyPort = 9;
  AddressList list(nullptr, &::freeaddrinfo);
  if (look_up(host, kAnyPort, AI_NUMERICHOST, list) != 0) {
    return std::nullopt;
  }
  const Address target = copy(list).front();
  // Connecting a datagram socket sends nothing: the kernel only chooses the route.
  const base::Descriptor socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address source;
  source.length = sizeof(source.storage);
  if (socket.get() < 0 || ::connect(socket.get(), generic(target), target.length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source.storage), &source.length) !=
          0) {
    return std::nullopt;
  }
  return source;
}

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  FSDP_CHECK(::getifaddrs(&first) == 0, ErrorCode::kIo,
             "cannot list the network interfaces: ", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto place = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const Interface& seen) { return seen.name == entry->ifa_name; });
    if (place == interfaces.end()) {
      place = interfaces.insert(place, {.name = entry->ifa_name});
    }
    place->is_up = (entry->ifa_flags & IFF_UP) != 0;
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      place->addresses.push_back(make_address(
          entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    }
  }
  return interfaces;
}

std::string to_text(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& interface : interfaces) {
    std::string addresses;
    for (const auto& address : interface.addresses) {
      base::append_to_list(addresses, address.host());
    }
    base::append_to_list(
        text, interface.name + " (" + (addresses.empty() ? "no address" : addresses) + ")");
  }
  return text;
}

}  // namespace fsdp::net
