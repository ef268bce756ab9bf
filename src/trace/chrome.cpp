// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

namespace fsdp::trace {
namespace {

using Json = nlohmann::ordered_json;

/// Tracks are that many threads apart; lanes lie between.
constexpr int kLanes = 100;

const char* track_name(Track track) {
  switch (track) {
    case Track::kProgram: return "program";
    case Track::kCompute: return "compute";
    case Track::kGather: return "all-gather";
    case Track::kReduce: return "reduce-scatter";
  }
  return "unknown";
}

int thread_of(const Slice& slice) {
  return static_cast<int>(slice.track) * kLanes + std::min(slice.lane, kLanes - 1);
}

/// Microseconds with three decimals: no rounding may make neighbours overlap.
std::string microseconds(std::int64_t ns) {
  const std::string digits = std::to_string(std::abs(ns) % 1000);
  return (ns < 0 ? "-" : "") + std::to_string(std::abs(ns) / 1000) + "." +
         std::string(3 - digits.size(), '0') + digits;
}

/// Writes one rank's events.
class Writer {
 public:
  explicit Writer(const Who& who) : who_(who) {}

  void describe(const Timeline& timeline) {
    const std::string at = who_.host.empty() ? "" : " on " + who_.host;
    meta("process_name", 0, {{"name", "rank " + std::to_string(who_.rank) + at}});
    meta("process_sort_index", 0, {{"sort_index", who_.rank}});
    std::set<int> threads;
    for (const Slice& slice : timeline.slices) {
      if (!threads.insert(thread_of(slice)).second) {
        continue;
      }
      const std::string lane = slice.lane == 0 ? "" : " " + std::to_string(slice.lane + 1);
      meta("thread_name", thread_of(slice), {{"name", track_name(slice.track) + lane}});
      meta("thread_sort_index", thread_of(slice), {{"sort_index", thread_of(slice)}});
    }
    if (timeline.dropped > 0) {
      meta("process_labels", 0,
           {{"labels", std::to_string(timeline.dropped) + " events beyond the limit are missing"}});
    }
  }

  void write(const Slice& slice) {
    Json args = Json::object();
    if (slice.kind == SliceKind::kGather || slice.kind == SliceKind::kUnusedGather) {
      args["bytes"] = slice.bytes;
    }
    if (slice.kind == SliceKind::kGather || slice.kind == SliceKind::kReduce) {
      args["exposed_us"] = static_cast<double>(slice.wait_ns) / 1000;
    }
    line("X", thread_of(slice), slice.begin_ns,
         ", \"dur\": " + microseconds(slice.end_ns - slice.begin_ns) +
             ", \"name\": " + quoted(name_of(slice)) + ", \"cat\": " + quoted(category(slice)) +
             (args.empty() ? "" : ", \"args\": " + args.dump()));
  }

  /// Numbers of arrows are those of one file, so that a rank's are its own.
  void write(const Slice& gather, const Slice& compute) {
    const std::string id = quoted(std::to_string(who_.rank) + "." + std::to_string(arrows_++));
    const std::string rest = ", \"name\": \"weights\", \"cat\": \"weights\", \"id\": " + id;
    line("s", thread_of(gather), gather.begin_ns, rest);
    line("f", thread_of(compute), compute.begin_ns, rest + ", \"bp\": \"e\"");
  }

  void write(const Level& level) {
    line("C", 0, level.time_ns,
         ", \"name\": " + quoted(level.name) +
             ", \"args\": {\"value\": " + Json(level.value).dump() + "}");
  }

  std::vector<std::string> result() { return std::move(lines_); }

 private:
  static std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  static const char* category(const Slice& slice) {
    switch (slice.kind) {
      case SliceKind::kRegion: return "program";
      case SliceKind::kCompute: return "compute";
      case SliceKind::kWaitGather:
      case SliceKind::kWaitReduce: return "wait";
      case SliceKind::kGather: return "gather";
      case SliceKind::kUnusedGather: return "gather, not used";
      case SliceKind::kReduce: return "reduce";
    }
    return "unknown";
  }

  std::string name_of(const Slice& slice) const {
    if (slice.kind == SliceKind::kRegion) {
      return slice.name;
    }
    const auto index = static_cast<std::size_t>(slice.unit);
    const std::string unit = slice.unit >= 0 && index < who_.units.size()
                                 ? who_.units[index]
                                 : "unit " + std::to_string(slice.unit);
    switch (slice.kind) {
      case SliceKind::kWaitGather: return "wait for " + unit;
      case SliceKind::kWaitReduce: return "wait for gradients of " + unit;
      default: return unit;
    }
  }

  void meta(const char* name, int thread, const Json& args) {
    lines_.push_back(std::string("{\"ph\": \"M\", \"pid\": ") + std::to_string(who_.rank) +
                     ", \"tid\": " + std::to_string(thread) + ", \"name\": \"" + name +
                     "\", \"args\": " + args.dump(-1, ' ', false, Json::error_handler_t::replace) +
                     "}");
  }

  void line(const char* phase, int thread, std::int64_t time_ns, const std::string& rest) {
    lines_.push_back(std::string("{\"ph\": \"") + phase + "\", \"pid\": " +
                     std::to_string(who_.rank) + ", \"tid\": " + std::to_string(thread) +
                     ", \"ts\": " + microseconds(time_ns + who_.clock_offset_ns) + rest + "}");
  }

  const Who& who_;
  std::vector<std::string> lines_;
  std::size_t arrows_ = 0;
};

}  // namespace

std::string chrome_head(const std::string& key) {
  return "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"trace\": " + Json(key).dump() +
         "}, \"traceEvents\": [\n";
}

std::vector<std::string> chrome_events(const Timeline& timeline, const Who& who) {
  Writer writer(who);
  writer.describe(timeline);
  for (const Slice& slice : timeline.slices) {
    writer.write(slice);
  }
  for (const Arrow& arrow : timeline.arrows) {
    writer.write(timeline.slices[arrow.gather], timeline.slices[arrow.compute]);
  }
  for (const Level& level : timeline.levels) {
    writer.write(level);
  }
  return writer.result();
}

}  // namespace fsdp::trace
