// SPDX-License-Identifier: Apache-2.0
/// Serves a job's store from a thread of rank 0's process. See NOTE [the job's store] in
/// store_wire.hpp.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "base/descriptor.hpp"
#include "net/door.hpp"
#include "net/key_table.hpp"

namespace fsdp::net {

struct StoreServerOptions {
  /// What those who connect must know; empty asks for nothing.
  std::string secret = {};
  /// What the store holds at most.
  std::size_t max_bytes = std::size_t{256} << 20;
  /// How long a stranger may take to prove that he is none, and how many may try at a time: the one
  /// who has tried longest makes room.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  std::size_t max_strangers = 64;
  /// How many are let in, this process included.
  std::size_t max_guests = 4096;
};

/// *Thread safety*: one thread at a time.
class StoreServer {
 public:
  StoreServer(Door door, StoreServerOptions options);
  /// Closes all connections.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// A connection of this process itself, which needs no proof; once.
  base::Descriptor take_own_end() { return std::move(own_end_); }

  /// From the return of this call on, nobody new is let in, and the door's name or port is free.
  void close_door();

 private:
  using Clock = std::chrono::steady_clock;

  struct Guest {
    base::Descriptor socket;
    bool is_stranger = true;
    Clock::time_point deadline{};  ///< for a stranger
    std::string random = {};       ///< that was sent to him
    std::string in = {}, out = {};
    bool is_over = false;
  };

  void serve();
  void wait();
  void let_in();
  void greet(base::Descriptor socket);
  void drop_oldest_stranger();
  void attend(Guest& guest);
  bool read_from(Guest& guest);
  void check_proof(Guest& guest);
  void answer_requests(Guest& guest);
  static bool write_to(Guest& guest);

  const StoreServerOptions options_;
  KeyTable table_;
  Door door_;
  std::list<Guest> guests_;  // the oldest first
  Clock::time_point door_rests_until_{};
  base::Descriptor own_end_;
  base::Descriptor bell_;  // an eventfd

  std::mutex mutex_;
  std::condition_variable door_closed_;
  bool wants_door_closed_ = false;
  bool is_door_closed_ = false;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace fsdp::net
