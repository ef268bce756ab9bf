// SPDX-License-Identifier: Apache-2.0
/// Listening sockets of others in this process: Gloo's, which cannot be asked to stop.
#pragma once

#include <set>

namespace fsdp::net {

/// The descriptors of this process's TCP sockets that listen.
std::set<int> listening_sockets();

/// From now on whoever connects to the socket gets no answer, and costs this process nothing.
/// Connections that were accepted before stay. For the system's lifetime of the socket.
void admit_nobody(int listening_socket);

/// Lets this process open as many files and connections as the system allows it at most.
void raise_open_files();

}  // namespace fsdp::net
