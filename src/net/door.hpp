// SPDX-License-Identifier: Apache-2.0
/// Where the ranks of one host meet: a Unix socket in a directory that belongs to this user alone,
/// so that no other user of the host can connect, listen in its place, or see that it is there.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/descriptor.hpp"
#include "net/network.hpp"

namespace fsdp::net {

/// A listening socket. The name of one in a file system goes when it is closed.
class Door {
 public:
  Door() = default;
  explicit Door(base::Descriptor socket, std::string path = {})
      : socket_(std::move(socket)), path_(std::move(path)) {}
  Door(Door&& other) noexcept
      : socket_(std::move(other.socket_)), path_(std::exchange(other.path_, {})) {}
  Door& operator=(Door&& other) noexcept {
    close();
    socket_ = std::move(other.socket_);
    path_ = std::exchange(other.path_, {});
    return *this;
  }
  ~Door() { close(); }

  /// -1 once it is closed.
  int socket() const { return socket_.get(); }
  /// Whether only processes of this host come through it.
  bool is_local() const { return !path_.empty(); }
  void close();

 private:
  base::Descriptor socket_;
  std::string path_;
};

/// The directory of this user for sockets, /tmp/fsdp-UID, made when it is not there; in /dev/shm
/// where /tmp cannot be written.
/// @throws Error kIo when there is something else, or others may enter
std::string private_directory();

/// Where those meet who would meet at `port` of this host's loopback interface; in a container, of
/// its own.
/// @throws as private_directory()
std::string private_path(std::uint16_t port);

/// Listens at `path`; what a process that was killed has left there goes.
/// @returns no socket when another process listens there
/// @throws Error kIo
Door open_private_door(const std::string& path);

/// ENOENT and ECONNREFUSED mean that nobody listens there yet; EAGAIN that many try to connect.
Connection connect_to_path(const std::string& path);

/// Whether the other end of a Unix socket belongs to this user.
bool is_own_user(int socket);

}  // namespace fsdp::net
