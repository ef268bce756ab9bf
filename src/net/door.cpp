// SPDX-License-Identifier: Apache-2.0
#include "net/door.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::net {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  FSDP_CHECK(path.size() < sizeof(address.sun_path), ErrorCode::kIo, "the path '", path, "' has ",
             path.size(), " bytes, a socket's has at most ", sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

void check_is_private(const std::string& path) {
  struct stat found{};
  FSDP_CHECK(::lstat(path.c_str(), &found) == 0, ErrorCode::kIo, "cannot look at '", path,
             "': ", std::strerror(errno));
  constexpr unsigned kOfOthers = 077;
  FSDP_CHECK(
      S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & kOfOthers) == 0,
      ErrorCode::kIo, "the ranks of a host meet in '", path,
      "', which must be a directory of user ", ::geteuid(), " that nobody else may enter, but it ",
      !S_ISDIR(found.st_mode)       ? "is no directory"
      : found.st_uid != ::geteuid() ? "belongs to user " + std::to_string(found.st_uid)
                                    : "is open to others (chmod 700 closes it)",
      ". Remove it, or have its owner or root do so");
}

/// Holds off others of this user who look at a socket's name, or change it.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path)
      : directory_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (::flock(directory_.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }

 private:
  base::Descriptor directory_;
};

}  // namespace

void Door::close() {
  if (socket_.get() >= 0 && !path_.empty()) {
    // While it listens, nobody else puts a socket there: see open_private_door().
    ::unlink(path_.c_str());
  }
  socket_.reset();
}

std::string private_directory() {
  int cause = 0;
  for (const char* parent : {"/tmp", "/dev/shm"}) {
    const std::string path = parent + ("/fsdp-" + std::to_string(::geteuid()));
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) {
      check_is_private(path);
      return path;
    }
    cause = errno;
  }
  fail(ErrorCode::kIo, "the ranks of a host meet in a directory of /tmp or /dev/shm, and none can ",
       "be made there: ", std::strerror(cause));
}

std::string private_path(std::uint16_t port) {
  // "net:[4026531840]": two containers may share /tmp and yet have ports of their own.
  std::array<char, 64> network{};
  (void)!::readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  std::string number;
  for (const char* letter = network.data(); *letter != '\0'; ++letter) {
    if (*letter >= '0' && *letter <= '9') {
      number += *letter;
    }
  }
  return private_directory() + "/" + number + "-" + std::to_string(port);
}

Door open_private_door(const std::string& path) {
  const DirectoryLock lock(path.substr(0, path.rfind('/')));
  const Connection other = connect_to_path(path);
  if (other.error == 0 || other.error == EAGAIN) {
    return {};
  }
  ::unlink(path.c_str());
  base::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  FSDP_CHECK(
      socket.get() >= 0 &&
          ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
          ::listen(socket.get(), SOMAXCONN) == 0,
      ErrorCode::kIo, "cannot listen at '", path, "': ", std::strerror(errno));
  return Door(std::move(socket), path);
}

Connection connect_to_path(const std::string& path) {
  const sockaddr_un address = address_of(path);
  Connection connection;
  connection.socket.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.socket.get() < 0 ||
      ::connect(connection.socket.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
    connection.error = errno;
    connection.socket.reset();
  }
  return connection;
}

bool is_own_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace fsdp::net
