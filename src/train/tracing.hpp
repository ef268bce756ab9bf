// SPDX-License-Identifier: Apache-2.0
/// Some steps of a run as a timeline.
#pragma once

#include <cstdint>
#include <functional>

#include "fsdp/comm/world.hpp"
#include "fsdp/engine/sharded.hpp"
#include "fsdp/trace/recorder.hpp"
#include "train/config.hpp"

namespace fsdp::train::detail {

/// With an empty TrainConfig::trace it does nothing.
class Tracing {
 public:
  explicit Tracing(const TrainConfig& config)
      : directory_(config.trace), first_(config.trace_first), last_(config.trace_last) {}

  /// For DebugOptions::observer; empty where nothing is traced.
  std::function<void(const trace::Event&)> observer();
  /// Around each step, counted from 1; after the last traced one, finish().
  void begin_step(std::int64_t step);
  void end_step(std::int64_t step, const Sharded& sharded, const World& world);
  /// Writes the files of the steps so far, if any, and says on rank 0 where; when they cannot be
  /// written it says that, and the run goes on. @collective all ranks
  void finish(const Sharded& sharded, const World& world);

 private:
  bool is_on() const { return !directory_.empty(); }

  std::string directory_;
  std::int64_t first_, last_;
  std::int64_t traced_ = 0;  ///< the newest traced step
  trace::Recorder recorder_;
};

}  // namespace fsdp::train::detail
