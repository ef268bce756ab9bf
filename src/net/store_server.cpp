// SPDX-License-Identifier: Apache-2.0
#include "net/store_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "base/sha256.hpp"
#include "fsdp/base/error.hpp"
#include "net/store_wire.hpp"

namespace fsdp::net {
namespace {

constexpr std::size_t kHelloBytes = wire::kRandomBytes + wire::kProofBytes;

void make_nonblocking(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
}

std::string random_bytes() {
  std::string bytes(wire::kRandomBytes, '\0');
  FSDP_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             ErrorCode::kIo, "the system gives no random bytes: ", std::strerror(errno));
  return bytes;
}

}  // namespace

StoreServer::StoreServer(Door door, StoreServerOptions options)
    : options_(std::move(options)),
      table_(options_.max_bytes),
      door_(std::move(door)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  std::array<int, 2> ends{};
  FSDP_CHECK(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0 && bell_.get() >= 0,
      ErrorCode::kIo, "the job's store gets no socket: ", std::strerror(errno));
  own_end_.reset(ends[0]);
  make_nonblocking(ends[1]);
  make_nonblocking(door_.socket());
  guests_.push_back({.socket = base::Descriptor(ends[1]), .is_stranger = false});
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  is_ending_ = true;
  ::eventfd_write(bell_.get(), 1);
  thread_.join();
}

void StoreServer::close_door() {
  std::unique_lock lock(mutex_);
  wants_door_closed_ = true;
  ::eventfd_write(bell_.get(), 1);
  door_closed_.wait(lock, [this] { return is_door_closed_; });
}

void StoreServer::serve() {
  while (!is_ending_) {
    wait();
    for (Guest& guest : guests_) {
      attend(guest);
      guest.is_over |= guest.is_stranger && Clock::now() >= guest.deadline;
    }
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_over; });
    std::lock_guard lock(mutex_);
    if (wants_door_closed_ && !is_door_closed_) {
      door_.close();
      std::erase_if(guests_, [](const Guest& guest) { return guest.is_stranger; });
      is_door_closed_ = true;
      door_closed_.notify_all();
    }
  }
}

/// Until there is something to do; whoever is at the door comes in.
void StoreServer::wait() {
  constexpr int kTick = 100;
  std::vector<pollfd> ready{{bell_.get(), POLLIN, 0}};
  const bool is_open = door_.socket() >= 0 && Clock::now() >= door_rests_until_;
  ready.push_back({is_open ? door_.socket() : -1, POLLIN, 0});
  bool needs_clock = door_.socket() >= 0 && !is_open;
  for (const Guest& guest : guests_) {
    // Who does not take his answers is not listened to.
    ready.push_back(
        {guest.socket.get(), static_cast<short>(guest.out.empty() ? POLLIN : POLLOUT), 0});
    needs_clock |= guest.is_stranger;
  }
  ::poll(ready.data(), ready.size(), needs_clock ? kTick : -1);
  eventfd_t ignored = 0;
  ::eventfd_read(bell_.get(), &ignored);
  if ((ready[1].revents & POLLIN) != 0) {
    let_in();
  }
}

void StoreServer::let_in() {
  constexpr int kAtOnce = 64;
  constexpr std::chrono::milliseconds kRest{100};
  for (int i = 0; i < kAtOnce; ++i) {
    base::Descriptor socket(
        ::accept4(door_.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() >= 0) {
      greet(std::move(socket));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // No descriptor, or no memory: whoever does not belong here gives his back.
      drop_oldest_stranger();
      door_rests_until_ = Clock::now() + kRest;
      return;
    }
  }
}

void StoreServer::greet(base::Descriptor socket) {
  if (door_.is_local() && !is_own_user(socket.get())) {
    return;
  }
  const auto strangers = static_cast<std::size_t>(
      std::ranges::count_if(guests_, [](const Guest& guest) { return guest.is_stranger; }));
  if (strangers >= options_.max_strangers) {
    drop_oldest_stranger();
  }
  Guest& guest = guests_.emplace_back();
  guest.socket = std::move(socket);
  guest.deadline = Clock::now() + options_.patience;
  guest.random = random_bytes();
  guest.out = std::string(wire::kGreeting) + guest.random;
}

void StoreServer::drop_oldest_stranger() {
  const auto oldest =
      std::ranges::find_if(guests_, [](const Guest& guest) { return guest.is_stranger; });
  if (oldest != guests_.end()) {
    guests_.erase(oldest);
  }
}

/// Sends what is due, answers what is asked, reads what is there: in turn, until one has to wait.
void StoreServer::attend(Guest& guest) {
  do {
    write_to(guest);
    if (!guest.is_stranger && guest.out.empty()) {
      answer_requests(guest);
    }
  } while (!guest.is_over && (!guest.out.empty() ? write_to(guest) : read_from(guest)));
}

/// @returns whether there was something
bool StoreServer::read_from(Guest& guest) {
  std::array<char, 65536> buffer;
  const std::size_t room = guest.is_stranger ? kHelloBytes - guest.in.size() : buffer.size();
  const ssize_t count = ::recv(guest.socket.get(), buffer.data(), room, 0);
  if (count <= 0) {
    const bool is_empty = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    guest.is_over = !is_empty;
    return false;
  }
  guest.in.append(buffer.data(), static_cast<std::size_t>(count));
  if (guest.is_stranger && guest.in.size() == kHelloBytes) {
    check_proof(guest);
  }
  return true;
}

void StoreServer::check_proof(Guest& guest) {
  const std::string random = guest.in.substr(0, wire::kRandomBytes);
  const base::Digest expected = wire::prove(options_.secret, "client", guest.random, random);
  const auto admitted =
      std::ranges::count_if(guests_, [](const Guest& one) { return !one.is_stranger; });
  if (!base::are_equal(base::view_of(expected), guest.in.substr(wire::kRandomBytes)) ||
      static_cast<std::size_t>(admitted) >= options_.max_guests) {
    guest.out = wire::kNo;
    write_to(guest);
    guest.is_over = true;
    return;
  }
  const base::Digest own = wire::prove(options_.secret, "server", guest.random, random);
  guest.out = wire::kYes + std::string(base::view_of(own));
  guest.in.clear();
  guest.is_stranger = false;
}

void StoreServer::answer_requests(Guest& guest) {
  // Who asks for much waits until he has taken it.
  while (guest.in.size() >= sizeof(wire::Length) && guest.out.size() < wire::kMaxBytes) {
    const std::size_t length = wire::number_of(guest.in);
    if (length > wire::kMaxBytes) {
      guest.is_over = true;
      return;
    }
    if (guest.in.size() < sizeof(wire::Length) + length) {
      return;
    }
    const auto answer =
        table_.answer(std::string_view(guest.in).substr(sizeof(wire::Length), length));
    if (!answer) {
      guest.is_over = true;
      return;
    }
    guest.in.erase(0, sizeof(wire::Length) + length);
    wire::append_field(guest.out, *answer);
  }
}

/// @returns whether all is sent
bool StoreServer::write_to(Guest& guest) {
  while (!guest.is_over && !guest.out.empty()) {
    const ssize_t count =
        ::send(guest.socket.get(), guest.out.data(), guest.out.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      guest.out.erase(0, static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else {
      guest.is_over = errno != EINTR;
    }
  }
  return !guest.is_over;
}

}  // namespace fsdp::net
