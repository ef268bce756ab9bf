// SPDX-License-Identifier: Apache-2.0
/// Means of numbers that each rank measures for itself, such as the loss on its own batch. What one
/// rank prints of its own is not the loss of the job.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/world.hpp"

namespace fsdp {

namespace comm {
class Work;
}

/// A mean under way; get() waits for it. Fetch the one of the previous step after starting that of
/// this step, and the wait costs nothing.
///
/// *Invariants*: all ranks get their means in the same order. Move-only; one that is destroyed
/// without get() is waited for, unless an exception unwinds. *Thread safety*: one thread at a time.
class PendingMean {
 public:
  PendingMean(World world, double value, double weight, std::string name);
  PendingMean(PendingMean&&) noexcept;
  PendingMean& operator=(PendingMean) noexcept;
  ~PendingMean();

  /// The sum of value times weight over all ranks, in rank order, divided by total_weight(). A rank
  /// of weight 0 does not count, whatever its value. May be called again.
  /// @blocks until every rank has started it
  /// @throws Error kInvalidArgument, on all ranks, when a weight is negative or not finite or all
  /// are zero; else as comm::Work::wait()
  double get();
  /// The sum of the weights. @blocks and @throws as get()
  double total_weight();

 private:
  struct Result {
    double mean;
    double weight;
  };
  const Result& result();

  World world_;  ///< keeps the group
  std::string name_;
  struct Counted {
    double value;
    double weight;
  };
  // Where the exchange reads and writes, wherever this object moves.
  std::unique_ptr<Counted> own_;
  std::vector<Counted> all_;  ///< by rank
  std::unique_ptr<comm::Work> work_;
  std::optional<Result> result_;
};

/// Starts the mean of `value` over all ranks, each counting by its `weight`, for example its number
/// of samples. `name` stands in messages.
/// @collective all ranks, with the same name; an all-gather of 16 bytes per rank, asynchronous
/// @throws Error as comm::Job::start_exchange() does
///
/// *Example*: `double loss = fsdp::mean_over_ranks(world, own_loss, own_tokens).get();`
PendingMean mean_over_ranks(const World& world, double value, double weight = 1.0,
                            std::string name = "mean_over_ranks");

/// The sum of all ranks' counts, such as the samples or tokens of a step: what
/// Sharded::set_gradient_divisor() takes when each loss is a sum. A rank may have none.
/// @collective all ranks; an all-gather of 16 bytes per rank @blocks until every rank is here
/// @throws Error kInvalidArgument, on all ranks, when a count is negative or not finite or all are
/// zero
double count_over_ranks(const World& world, double count);

}  // namespace fsdp
