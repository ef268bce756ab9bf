// SPDX-License-Identifier: Apache-2.0
/// The transport between processes: direct exchange over Gloo's point-to-point messages, which
/// needs no full-size temporary and sums in rank order. See NOTE [direct exchange] in gloo.cpp.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

#include "comm/timeout.hpp"
#include "fsdp/comm/communicator.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp::comm {

/// How to reach the peers once a store is there.
struct GlooOptions {
  int rank = 0;
  int size = 1;
  /// Literal address of the store's host. Gloo listens where packets to it leave this host, unless
  /// GLOO_SOCKET_IFNAME names an interface.
  std::string master_addr = "127.0.0.1";
  /// For the connection, and for the collectives until set_timeout().
  detail::Milliseconds timeout{};
};

/// Connects all ranks with each other.
/// @collective all ranks @blocks until all are connected
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options);

/// @collective all ranks @blocks until all are connected
/// @throws Error kTimeout or kPeerFailed
std::shared_ptr<Communicator> make_gloo_communicator(c10::intrusive_ptr<c10d::Store> store,
                                                     const GlooOptions& options);

}  // namespace fsdp::comm
