// SPDX-License-Identifier: Apache-2.0
/// The other end of a job's store. See NOTE [the job's store] in store_wire.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"

namespace fsdp::net {

/// How the first words with a store went.
enum class Welcome {
  kAdmitted,
  kClosed,    ///< the other end left, perhaps as it takes nobody any more
  kSilent,    ///< it said nothing in time
  kStranger,  ///< it is no store of a job
  kRefused,   ///< one of the two does not know the other's secret
};

/// Proves to each other that both know `secret`. The socket blocks afterwards.
/// @blocks until `deadline`
Welcome greet_store(int socket, std::string_view secret,
                    std::chrono::steady_clock::time_point deadline);

/// The store is gone, or does not grant what was asked.
class StoreError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Requests to a store. Each waits for its answer, without a limit: as long as the process that
/// serves it stands still. *Thread safety*: internally locked, one request at a time.
class StoreClient {
 public:
  /// `socket` has been greeted.
  explicit StoreClient(base::Descriptor socket) : socket_(std::move(socket)) {}

  /// All of them @throws StoreError
  void set(std::string_view key, std::string_view text);
  /// Nothing where nobody has written.
  std::optional<std::string> get(std::string_view key);
  /// The sum. Adding 0 asks, and writes nothing.
  std::int64_t add(std::string_view key, std::int64_t delta);
  /// Writes `text` where `expected` stands, or nothing where that is empty; returns what is then
  /// there, or `expected` where there is nothing.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view text);
  /// Whether all of them are there.
  bool check(const std::vector<std::string>& keys);
  bool erase(std::string_view key);
  std::int64_t count();

 private:
  std::string ask(const std::string& request);

  std::mutex mutex_;
  base::Descriptor socket_;
};

}  // namespace fsdp::net
