// SPDX-License-Identifier: Apache-2.0
#include "net/interface_choice.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "fsdp/base/error.hpp"

namespace fsdp::net {
namespace {

constexpr const char* kVariable = "GLOO_SOCKET_IFNAME";

std::string variable() {
  const char* value = std::getenv(kVariable);
  return value == nullptr ? "" : value;
}

bool is_link_local(const Address& address) { return address.host().starts_with("fe80:"); }

/// Of the wanted family if there is one; an address for this link only comes last.
const Address& best_address(const std::vector<Address>& addresses, int family) {
  const auto weight = [family](const Address& address) {
    return (address.family() == family ? 2 : 0) + (is_link_local(address) ? 0 : 1);
  };
  return *std::max_element(
      addresses.begin(), addresses.end(),
      [&](const Address& a, const Address& b) { return weight(a) < weight(b); });
}

std::string name_of(const std::string& address, const std::vector<Interface>& interfaces) {
  for (const Interface& interface : interfaces) {
    for (const Address& own : interface.addresses) {
      if (own.host() == address) {
        return interface.name;
      }
    }
  }
  return "";
}

}  // namespace

std::vector<InterfaceChoice> choose_named_interfaces(const std::string& names, int family,
                                                     const std::vector<Interface>& interfaces) {
  std::vector<InterfaceChoice> choices;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    const auto found =
        std::find_if(interfaces.begin(), interfaces.end(),
                     [&](const Interface& interface) { return interface.name == name; });
    const char* problem = found == interfaces.end()  ? "is no interface of this host"
                          : !found->is_up            ? "is down"
                          : found->addresses.empty() ? "has no address"
                                                     : nullptr;
    FSDP_CHECK(
        problem == nullptr, ErrorCode::kInvalidArgument, kVariable, " is '", names, "', but '",
        name, "' ", problem, "; there are ", to_text(interfaces),
        name.starts_with('^') ? ". To exclude one is not possible: name the one to use" : "");
    choices.push_back({.interface = name,
                       .address = best_address(found->addresses, family).host(),
                       .reason = kVariable});
  }
  FSDP_CHECK(!choices.empty(), ErrorCode::kInvalidArgument, kVariable, " is '", names,
             "' and names no interface; there are ", to_text(interfaces));
  return choices;
}

std::vector<InterfaceChoice> choose_interfaces(const std::string& master) {
  const std::optional<Address> source = source_address_towards(master);
  const int family = source ? source->family() : AF_INET;
  const std::vector<Interface> interfaces = list_interfaces();
  if (!variable().empty()) {
    return choose_named_interfaces(variable(), family, interfaces);
  }
  FSDP_CHECK(source.has_value(), ErrorCode::kIo, "there is no route to ", master,
             ", where rank 0 is; ", kVariable,
             " names the interface to use: ", to_text(interfaces));
  return {{.interface = name_of(source->host(), interfaces),
           .address = source->host(),
           .reason = "the route to " + master}};
}

void check_interface_variable() {
  if (!variable().empty()) {
    choose_named_interfaces(variable(), AF_UNSPEC, list_interfaces());
  }
}

}  // namespace fsdp::net
