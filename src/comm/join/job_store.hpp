// SPDX-License-Identifier: Apache-2.0
/// The job's own store (net/store_server.hpp) as c10d and Gloo see a store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/timeout.hpp"
#include "net/store_client.hpp"
#include "net/store_server.hpp"

namespace fsdp::comm::detail {

/// *Thread safety*: internally locked. A request waits for the process that serves the store for as
/// long as that stands still; get() and wait() for a key as long as the time-out.
class JobStore final : public c10d::Store {
 public:
  /// Of a rank that has come through the store's door.
  JobStore(std::unique_ptr<net::StoreClient> client, Milliseconds timeout);
  /// Of rank 0, whose process serves it.
  JobStore(std::unique_ptr<net::StoreServer> server, Milliseconds timeout);

  /// Once all have met: nobody else is let in. On rank 0; no effect on the others.
  void close_door();

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  std::unique_ptr<net::StoreServer> server_;  // goes after the client
  std::unique_ptr<net::StoreClient> client_;
};

}  // namespace fsdp::comm::detail
