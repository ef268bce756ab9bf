// SPDX-License-Identifier: Apache-2.0
/// What the ranks of a job know of each other before they are connected: what a choice of transport
/// goes by, and what one is made from.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/join/rendezvous.hpp"
#include "comm/join/set_up_exchange.hpp"
#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace fsdp::comm::detail {

/// *Thread safety*: one thread at a time.
class Site {
 public:
  /// `wish` is the word for a transport, the same on all ranks. `hosts`, where each rank runs, is
  /// for tests.
  Site(base::RankEnvironment environment, Meeting meeting, std::string wish, Milliseconds timeout,
       std::optional<std::vector<std::string>> hosts = {});

  /// The same ranks, with a device each; those of the others are asked for when somebody wants
  /// them.
  Site on(c10::Device device) const;
  /// The same ranks with another wish.
  Site wishing(std::string word) const;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.size; }
  const std::string& wish() const { return wish_; }
  const Meeting& meeting() const { return meeting_; }
  /// How long connecting may take.
  Milliseconds timeout() const { return timeout_; }
  SetUp set_up() const;
  /// Where this rank computes.
  c10::Device device() const { return device_; }

  /// Where each rank runs, by rank. The first call asks the ranks.
  /// @collective all ranks @blocks @throws as exchange_texts()
  const std::vector<std::string>& hosts() const;

  /// What every rank says about `topic`, by rank; once a topic.
  /// @collective all ranks @blocks @throws as exchange_texts()
  std::vector<std::string> ask_all(const std::string& topic, const std::string& mine) const;

 private:
  std::string own_host() const;

  base::RankEnvironment environment_;
  Meeting meeting_;
  std::string wish_;
  Milliseconds timeout_;
  mutable std::optional<std::vector<std::string>> hosts_;
  c10::Device device_ = c10::kCPU;
};

}  // namespace fsdp::comm::detail
