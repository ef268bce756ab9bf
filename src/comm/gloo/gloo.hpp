// SPDX-License-Identifier: Apache-2.0
/// The transport between processes: direct exchange over Gloo's point-to-point messages, which
/// needs no full-size temporary and sums in rank order. See NOTE [direct exchange] in gloo.cpp.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

#include "comm/host_transport.hpp"
#include "comm/timeout.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp::comm {

namespace detail {
class Site;
inline Traits gloo_traits() { return {.name = "gloo"}; }
inline constexpr const char* kGlooBetween = "processes of any hosts";
/// Of what goes over Gloo in a build for a LibTorch without it, to be read behind its name.
inline constexpr const char* kWithoutGloo =
    "is not in this build, which is for a LibTorch without Gloo (FSDP_GLOO=OFF): ranks of one host "
    "can use shm";
}  // namespace detail

/// How to reach the peers once a store is there.
struct GlooOptions {
  int rank = 0;
  int size = 1;
  /// Literal address of the store's host. Gloo listens where packets to it leave this host, unless
  /// GLOO_SOCKET_IFNAME names an interface.
  std::string master_addr = "127.0.0.1";
  /// For the connection, and for the collectives until set_timeout().
  detail::Milliseconds timeout{};
  /// How long connecting may stand still before all try again; twice as long each time.
  detail::Milliseconds attempt = std::chrono::seconds(10);
};

GlooOptions gloo_options(const detail::Site& site);

/// Connects all ranks with each other. What fails, or stands still, is tried again; see NOTE
/// [strangers among the pairs] in gloo_connect.cpp.
/// @collective all ranks @blocks until all are connected, up to the time-out
/// @throws Error kPeerFailed
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options);

/// @collective all ranks @blocks until all are connected
/// @throws Error kTimeout or kPeerFailed
std::shared_ptr<detail::HostTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store,
                                                           const GlooOptions& options);

}  // namespace fsdp::comm
