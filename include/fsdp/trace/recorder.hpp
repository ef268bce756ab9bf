// SPDX-License-Identifier: Apache-2.0
/// Keeps what one rank did for a timeline: the engine's events and the program's own stretches of
/// work. write_trace() in fsdp/engine/trace.hpp makes a file of it that Perfetto opens.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/trace/event.hpp"

namespace fsdp::trace {

/// A stretch of the program's own work, such as "optimizer".
struct Region {
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;  ///< steady clock
};

/// A number at one moment, such as the bytes of a kind of memory.
struct Sample {
  std::string name;
  std::int64_t time_ns = 0;  ///< steady clock
  double value = 0;
};

/// What a Recorder has kept.
struct Recording {
  std::vector<Event> events = {};    ///< in the order in which they happened
  std::vector<Region> regions = {};  ///< by their ends
  std::vector<Sample> samples = {};
  std::size_t dropped = 0;  ///< what came after the limit
};

/// *Example*:
///
///     fsdp::trace::Recorder recorder;
///     options.debug.observer = recorder.observer();
///     auto sharded = fsdp::fully_shard(model, world, options);
///     ... some steps, as the first differ from all others ...
///     recorder.start();
///     ... two steps ...
///     recorder.stop();
///     fsdp::write_trace(sharded, recorder, "traces");
///
/// *Invariants*: outlives the sharded module whose options have its observer. Until start() and
/// after stop() an event costs one read of a flag; without observer() a module makes none.
/// *Thread safety*: all members may be called from any thread; start() and stop() are of one, whose
/// regions are recorded.
class Recorder {
 public:
  /// Keeps at most `limit` events, regions and samples together; later ones are counted.
  explicit Recorder(std::size_t limit = std::size_t{1} << 20) : limit_(limit) {}
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// For DebugOptions::observer.
  std::function<void(const Event&)> observer() {
    return [this](const Event& event) { record(event); };
  }

  /// From here on all is recorded, this thread's trace_scope() too. One recorder per thread at a
  /// time: another one that records this thread's regions loses them to this. Does nothing while it
  /// records.
  void start();
  /// Ends that. Regions that are open are recorded up to here.
  void stop();
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }

  void record(const Event& event);
  void sample(const std::string& name, double value);
  void open_region(const char* name);
  /// Ends the region that was opened last.
  void close_region();

  /// All of it so far; what is kept from then on begins anew.
  Recording take();

 private:
  /// Whether one more is kept. Under the lock.
  bool has_room();

  std::size_t limit_;
  std::atomic<bool> is_recording_{false};
  std::mutex mutex_;
  Recording kept_;
  std::vector<Region> open_;
};

/// Records a region from its making to its end; see trace_scope().
class [[nodiscard]] Scope {
 public:
  explicit Scope(const char* name);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Recorder* recorder_;  ///< null where nobody records
};

}  // namespace fsdp::trace

namespace fsdp {

/// Names what happens until the result is destroyed in the timeline of the recorder that this
/// thread has started; without one it costs a read of a thread's variable. Scopes of a thread lie
/// within each other. `name` is copied.
///
///     auto scope = fsdp::trace_scope("loss");
inline trace::Scope trace_scope(const char* name) { return trace::Scope(name); }

}  // namespace fsdp
