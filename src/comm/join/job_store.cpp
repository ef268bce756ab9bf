// SPDX-License-Identifier: Apache-2.0
#include "comm/join/job_store.hpp"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

namespace fsdp::comm::detail {
namespace {

std::string_view view_of(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

JobStore::JobStore(std::unique_ptr<net::StoreClient> client, Milliseconds timeout)
    : Store(timeout), client_(std::move(client)) {}

JobStore::JobStore(std::unique_ptr<net::StoreServer> server, Milliseconds timeout)
    : Store(timeout),
      server_(std::move(server)),
      client_(std::make_unique<net::StoreClient>(server_->take_own_end())) {}

void JobStore::close_door() {
  if (server_) {
    server_->close_door();
  }
}

/// Several threads may use one connection.
c10::intrusive_ptr<c10d::Store> JobStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void JobStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  client_->set(key, view_of(value));
}

std::vector<std::uint8_t> JobStore::compareSet(const std::string& key,
                                               const std::vector<std::uint8_t>& expected,
                                               const std::vector<std::uint8_t>& desired) {
  return bytes_of(client_->compare_set(key, view_of(expected), view_of(desired)));
}

std::vector<std::uint8_t> JobStore::get(const std::string& key) {
  wait({key}, timeout_);
  return bytes_of(client_->get(key).value_or(""));
}

std::int64_t JobStore::add(const std::string& key, std::int64_t value) {
  return client_->add(key, value);
}

bool JobStore::deleteKey(const std::string& key) { return client_->erase(key); }

bool JobStore::check(const std::vector<std::string>& keys) { return client_->check(keys); }

std::int64_t JobStore::getNumKeys() { return client_->count(); }

void JobStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void JobStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  constexpr Milliseconds kLongestPause{20};
  const auto deadline = timeout == kNoTimeout ? kNoDeadline : Clock::now() + timeout;
  for (Milliseconds pause{1}; !check(keys); pause = std::min(pause * 2, kLongestPause)) {
    if (Clock::now() >= deadline) {
      throw net::StoreError("nobody has written '" + (keys.empty() ? "" : keys.front()) +
                            "' into the job's store within " + to_text(timeout));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace fsdp::comm::detail
