// SPDX-License-Identifier: Apache-2.0
#include "trace/timeline.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace fsdp::trace {
namespace {

/// The lanes of one track: each slice into the first that is free when it begins.
class Lanes {
 public:
  int place(std::int64_t begin_ns, std::int64_t end_ns) {
    for (std::size_t lane = 0; lane < ends_.size(); ++lane) {
      if (ends_[lane] <= begin_ns) {
        ends_[lane] = end_ns;
        return static_cast<int>(lane);
      }
    }
    ends_.push_back(end_ns);
    return static_cast<int>(ends_.size()) - 1;
  }

 private:
  std::vector<std::int64_t> ends_;
};

/// Follows one rank's events.
class Builder {
 public:
  void take(const Event& event) {
    switch (event.kind) {
      case EventKind::kTouch: touch(event); break;
      case EventKind::kGatherStart:
        gathers_[event.unit] = {.begin_ns = event.time_ns, .bytes = event.bytes};
        change_gathered(event.time_ns, event.bytes);
        break;
      case EventKind::kGatherWaitBegin: begin_wait(event); break;
      case EventKind::kGatherWaitEnd: end_gather(event); break;
      case EventKind::kFree: free(event); break;
      case EventKind::kReduceStart: reductions_[event.unit] = {.begin_ns = event.time_ns}; break;
      case EventKind::kReduceWaitBegin: begin_wait(event); break;
      case EventKind::kReduceWaitEnd: end_reduction(event); break;
      case EventKind::kBackwardEnd: end_compute(event.time_ns); break;
    }
  }

  Timeline result(const Recording& recording) {
    for (const Region& region : recording.regions) {
      add({.track = Track::kProgram,
           .kind = SliceKind::kRegion,
           .name = region.name,
           .begin_ns = region.begin_ns,
           .end_ns = region.end_ns});
    }
    for (const Sample& sample : recording.samples) {
      timeline_.levels.push_back({sample.name, sample.time_ns, sample.value});
    }
    timeline_.dropped = recording.dropped;
    place_on_lanes();
    return std::move(timeline_);
  }

 private:
  struct UnderWay {
    std::int64_t begin_ns = 0;
    std::int64_t bytes = 0;
  };
  struct Computing {
    int unit = -1;
    std::int64_t begin_ns = 0;
    std::vector<std::size_t> gathers = {};  ///< slices whose weights it took
  };

  std::size_t add(Slice slice) {
    timeline_.slices.push_back(std::move(slice));
    return timeline_.slices.size() - 1;
  }

  void touch(const Event& event) {
    touched_ns_ = event.time_ns;
    if (computing_ && computing_->unit == event.unit) {
      return;
    }
    end_compute(event.time_ns);
    computing_ = Computing{.unit = event.unit, .begin_ns = event.time_ns};
  }

  void end_compute(std::int64_t time_ns) {
    if (!computing_) {
      return;
    }
    const Computing computing = std::move(*computing_);
    computing_.reset();
    if (time_ns <= computing.begin_ns) {
      return;
    }
    const std::size_t slice = add({.track = Track::kCompute,
                                   .kind = SliceKind::kCompute,
                                   .unit = computing.unit,
                                   .begin_ns = computing.begin_ns,
                                   .end_ns = time_ns});
    for (std::size_t gather : computing.gathers) {
      timeline_.arrows.push_back({.gather = gather, .compute = slice});
    }
  }

  void begin_wait(const Event& event) {
    wait_begin_ns_ = event.time_ns;
    if (!computing_) {
      return;  // the program asked for it, by full_parameters() for example
    }
    // A gather is waited for at a touch, which nothing has computed since; then the computation
    // begins when the wait ends. Any other wait lies in the midst of one.
    const bool is_at_touch =
        event.kind == EventKind::kGatherWaitBegin && computing_->begin_ns >= touched_ns_;
    if (is_at_touch) {
      resume_ = std::exchange(computing_, std::nullopt);
    } else {
      resume_ = Computing{.unit = computing_->unit};
      end_compute(event.kind == EventKind::kGatherWaitBegin ? touched_ns_ : event.time_ns);
    }
  }

  /// Ends the wait that is under way, and returns how long it was.
  std::int64_t end_wait(const Event& event, SliceKind kind) {
    const std::int64_t begin_ns =
        std::exchange(wait_begin_ns_, std::nullopt).value_or(event.time_ns);
    const std::int64_t wait_ns = event.time_ns - begin_ns;
    if (wait_ns > 0) {
      add({.track = Track::kCompute,
           .kind = kind,
           .unit = event.unit,
           .begin_ns = begin_ns,
           .end_ns = event.time_ns});
    }
    if (resume_) {
      computing_ = std::exchange(resume_, std::nullopt);
      computing_->begin_ns = event.time_ns;
    }
    return wait_ns;
  }

  void end_gather(const Event& event) {
    const std::int64_t wait_ns = end_wait(event, SliceKind::kWaitGather);
    const auto found = gathers_.find(event.unit);
    if (found == gathers_.end()) {
      return;  // it began before the recording
    }
    const std::size_t slice = add({.track = Track::kGather,
                                   .kind = SliceKind::kGather,
                                   .unit = event.unit,
                                   .begin_ns = found->second.begin_ns,
                                   .end_ns = event.time_ns,
                                   .bytes = found->second.bytes,
                                   .wait_ns = wait_ns});
    resident_[event.unit] = found->second.bytes;
    gathers_.erase(found);
    if (computing_) {
      computing_->gathers.push_back(slice);
    }
  }

  void free(const Event& event) {
    if (const auto unused = gathers_.find(event.unit); unused != gathers_.end()) {
      add({.track = Track::kGather,
           .kind = SliceKind::kUnusedGather,
           .unit = event.unit,
           .begin_ns = unused->second.begin_ns,
           .end_ns = event.time_ns,
           .bytes = unused->second.bytes});
      change_gathered(event.time_ns, -unused->second.bytes);
      gathers_.erase(unused);
    } else if (const auto found = resident_.find(event.unit); found != resident_.end()) {
      change_gathered(event.time_ns, -found->second);
      resident_.erase(found);
    }
  }

  void end_reduction(const Event& event) {
    const std::int64_t wait_ns = end_wait(event, SliceKind::kWaitReduce);
    if (const auto found = reductions_.find(event.unit); found != reductions_.end()) {
      add({.track = Track::kReduce,
           .kind = SliceKind::kReduce,
           .unit = event.unit,
           .begin_ns = found->second.begin_ns,
           .end_ns = event.time_ns,
           .wait_ns = wait_ns});
      reductions_.erase(found);
    }
  }

  void change_gathered(std::int64_t time_ns, std::int64_t bytes) {
    gathered_ += bytes;
    timeline_.levels.push_back({"gathered bytes", time_ns, static_cast<double>(gathered_)});
  }

  /// Slices of a kind of transfer overlap each other, so that each goes to a lane that is free.
  void place_on_lanes() {
    std::vector<Slice*> order;
    for (Slice& slice : timeline_.slices) {
      if (slice.track == Track::kGather || slice.track == Track::kReduce) {
        order.push_back(&slice);
      }
    }
    std::ranges::sort(order, {}, &Slice::begin_ns);
    std::map<Track, Lanes> lanes;
    for (Slice* slice : order) {
      slice->lane = lanes[slice->track].place(slice->begin_ns, slice->end_ns);
    }
  }

  Timeline timeline_;
  std::optional<Computing> computing_;         ///< the unit whose operators run
  std::optional<Computing> resume_;            ///< while a wait lasts: who goes on after it
  std::optional<std::int64_t> wait_begin_ns_;  ///< of the wait under way
  std::int64_t touched_ns_ = 0;                ///< the last touch
  std::map<int, UnderWay> gathers_, reductions_;
  std::map<int, std::int64_t> resident_;  ///< bytes of units that are gathered
  std::int64_t gathered_ = 0;
};

}  // namespace

Timeline make_timeline(const Recording& recording) {
  Builder builder;
  for (const Event& event : recording.events) {
    builder.take(event);
  }
  return builder.result(recording);
}

}  // namespace fsdp::trace
