// SPDX-License-Identifier: Apache-2.0
/// What the ranks of a job know of each other before they are connected: what a choice of transport
/// goes by, and what one is made from.
#pragma once

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

  int rank() const { return environment_.rank; }
  int size() const { return environment_.size; }
  const std::string& wish() const { return wish_; }
  const Meeting& meeting() const { return meeting_; }
  /// How long connecting may take.
  Milliseconds timeout() const { return timeout_; }
  SetUp set_up() const;

  /// Where each rank runs, by rank. The first call asks the ranks.
  /// @collective all ranks @blocks @throws as exchange_texts()
  const std::vector<std::string>& hosts() const;

 private:
  std::string own_host() const;

  const base::RankEnvironment environment_;
  const Meeting meeting_;
  const std::string wish_;
  const Milliseconds timeout_;
  mutable std::optional<std::vector<std::string>> hosts_;
};

}  // namespace fsdp::comm::detail
