// SPDX-License-Identifier: Apache-2.0
#include "net/store_client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/sha256.hpp"
#include "net/store_wire.hpp"

namespace fsdp::net {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Request;

std::string make_request(Request kind, std::initializer_list<std::string_view> fields = {}) {
  std::string request{static_cast<char>(kind)};
  for (const std::string_view field : fields) {
    wire::append_field(request, field);
  }
  return request;
}

/// Waits for `events`; false at the deadline.
bool is_ready(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{socket, events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (count > 0) {
      return true;
    }
    if ((count == 0 || errno != EINTR) && Clock::now() >= deadline) {
      return false;
    }
  }
}

/// So many bytes of a socket that does not block; less when it is closed or silent.
std::string read_exactly(int socket, std::size_t size, Clock::time_point deadline, bool& is_late) {
  std::string bytes(size, '\0');
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t count = ::recv(socket, bytes.data() + filled, size - filled, 0);
    if (count > 0) {
      filled += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      break;
    } else if (!is_ready(socket, POLLIN, deadline)) {
      is_late = true;
      break;
    }
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace

Welcome greet_store(int socket, std::string_view secret, Clock::time_point deadline) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  bool is_late = false;
  const auto ended = [&is_late] { return is_late ? Welcome::kSilent : Welcome::kClosed; };
  const std::size_t size = wire::kGreeting.size() + wire::kRandomBytes;
  const std::string greeting = read_exactly(socket, size, deadline, is_late);
  const std::size_t seen = std::min(greeting.size(), wire::kGreeting.size());
  if (greeting.compare(0, seen, wire::kGreeting.substr(0, seen)) != 0) {
    return Welcome::kStranger;
  }
  if (greeting.size() < size) {
    return ended();
  }
  const std::string of_server = greeting.substr(wire::kGreeting.size());
  std::string of_client(wire::kRandomBytes, '\0');
  if (::getrandom(of_client.data(), of_client.size(), 0) !=
      static_cast<ssize_t>(of_client.size())) {
    return Welcome::kClosed;
  }
  const base::Digest proof = wire::prove(secret, "client", of_server, of_client);
  const std::string hello = of_client + std::string(base::view_of(proof));
  // Fits into any socket's buffer.
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size())) {
    return Welcome::kClosed;
  }
  if (const std::string word = read_exactly(socket, 1, deadline, is_late); word.empty()) {
    return ended();
  } else if (word.front() != wire::kYes) {
    return Welcome::kRefused;
  }
  const std::string answer = read_exactly(socket, wire::kProofBytes, deadline, is_late);
  if (answer.size() < wire::kProofBytes) {
    return ended();
  }
  const base::Digest expected = wire::prove(secret, "server", of_server, of_client);
  if (!base::are_equal(base::view_of(expected), answer)) {
    return Welcome::kRefused;
  }
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) & ~O_NONBLOCK);
  return Welcome::kAdmitted;
}

std::string StoreClient::ask(const std::string& request) {
  if (request.size() > wire::kMaxBytes) {
    throw StoreError("a request of " + std::to_string(request.size()) +
                     " bytes to the job's store, which takes " + std::to_string(wire::kMaxBytes) +
                     " at a time");
  }
  std::string bytes;
  wire::append_field(bytes, request);
  std::lock_guard lock(mutex_);
  const auto lose = [this](const std::string& why) {
    socket_.reset();
    throw StoreError("the job's store is gone: " + why);
  };
  if (socket_.get() < 0) {
    lose("the connection was lost before");
  }
  for (std::string_view left = bytes; !left.empty();) {
    const ssize_t count = ::send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      left.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      lose(std::strerror(errno));
    }
  }
  const auto read = [&](std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t filled = 0; filled < size;) {
      const ssize_t count = ::recv(socket_.get(), text.data() + filled, size - filled, 0);
      if (count > 0) {
        filled += static_cast<std::size_t>(count);
      } else if (count == 0 || errno != EINTR) {
        lose(count == 0 ? "its process has closed the connection" : std::strerror(errno));
      }
    }
    return text;
  };
  const wire::Length length = wire::number_of(read(sizeof(wire::Length)));
  if (length == 0 || length > wire::kMaxBytes + 1) {
    lose("an answer of " + std::to_string(length) + " bytes");
  }
  std::string answer = read(length);
  if (answer.front() == wire::kRefused) {
    throw StoreError(answer.substr(1));
  }
  return answer;
}

void StoreClient::set(std::string_view key, std::string_view text) {
  ask(make_request(Request::kSet, {key, text}));
}

std::optional<std::string> StoreClient::get(std::string_view key) {
  const std::string answer = ask(make_request(Request::kGet, {key}));
  return answer.front() == wire::kYes ? std::optional(answer.substr(1)) : std::nullopt;
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t delta) {
  return std::stoll(ask(make_request(Request::kAdd, {key, std::to_string(delta)})).substr(1));
}

std::string StoreClient::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view text) {
  return ask(make_request(Request::kCompareSet, {key, expected, text})).substr(1);
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  std::string request = make_request(Request::kCheck);
  for (const std::string& key : keys) {
    wire::append_field(request, key);
  }
  return ask(request).front() == wire::kYes;
}

bool StoreClient::erase(std::string_view key) {
  return ask(make_request(Request::kErase, {key})).front() == wire::kYes;
}

std::int64_t StoreClient::count() {
  return std::stoll(ask(make_request(Request::kCount)).substr(1));
}

}  // namespace fsdp::net
