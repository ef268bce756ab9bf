// SPDX-License-Identifier: Apache-2.0
/// Which accesses to which bytes are ordered. See NOTE [Order on streams].
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

constexpr int kHost = -1;
/// Of a run that is wrong everywhere the first will do.
constexpr std::size_t kMostReports = 200;

struct Stamp {
  int stream = kHost;
  std::uint64_t tick = 0;  ///< 0: nobody
  std::uint64_t block = 0;
  std::string name;
};

/// Bytes with one history. It outlives the block that they are in: a block that another stream gets
/// is compared with its use before.
struct Segment {
  std::uintptr_t end = 0;
  Stamp writer;
  std::vector<Stamp> readers;  ///< since, one per stream
};

std::mutex mutex;
std::map<std::uintptr_t, Segment> segments;  ///< by their first byte; they do not overlap
std::array<Clock, kStreams> clocks = {};
std::array<Clock, kDevices> host_knows = {};  ///< what waits for a device's streams have shown
thread_local Clock thread_knows = {};         ///< what waits of this thread have shown
std::vector<Report> reports;
std::array<Counts, kDevices> counted = {};

std::string describe(const Stamp& stamp, bool writes) {
  const std::string where = stamp.stream == kHost
                                ? "host"
                                : stream_name(stamp.stream) + " #" + std::to_string(stamp.tick);
  return stamp.name + (writes ? " (writes, " : " (reads, ") + where + ")";
}

/// One access, and what is known where it is made.
struct Visit {
  Stamp now;
  bool writes;
  const Clock& knows;

  void compare(const Stamp& before, bool before_writes, std::size_t bytes) const {
    if (before.tick == 0 || knows[static_cast<std::size_t>(before.stream)] >= before.tick) {
      return;
    }
    const bool is_other_block = before.block != now.block;
    report(now.stream == kHost ? Report::Kind::kHostRace : Report::Kind::kRace,
           describe(now, writes) + " is not ordered after " + describe(before, before_writes) +
               " on " + std::to_string(bytes) + " bytes" +
               (is_other_block ? ", which were freed and handed out again in between" : ""));
  }

  void compare(const Segment& segment, std::size_t bytes) const {
    compare(segment.writer, true, bytes);
    if (writes) {
      for (const Stamp& reader : segment.readers) {
        compare(reader, false, bytes);
      }
    }
  }

  void leave_in(Segment& segment) const {
    if (writes) {
      segment.writer = now;
      segment.readers.clear();
      return;
    }
    const auto same = std::ranges::find(segment.readers, now.stream, &Stamp::stream);
    if (same == segment.readers.end()) {
      segment.readers.push_back(now);
    } else {
      *same = now;
    }
  }
};

/// Makes `address` a border between segments.
void cut(std::uintptr_t address) {
  auto next = segments.upper_bound(address);
  if (next == segments.begin()) {
    return;
  }
  auto& [begin, segment] = *std::prev(next);
  if (begin < address && address < segment.end) {
    Segment rest = segment;
    segment.end = address;
    segments.emplace(address, std::move(rest));
  }
}

void access(const Access& range, const Visit& visit) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  const std::uintptr_t end = begin + range.bytes;
  cut(begin);
  cut(end);
  std::uintptr_t covered = begin;
  for (auto it = segments.lower_bound(begin); covered < end; ++it) {
    if (it == segments.end() || it->first > covered) {
      const std::uintptr_t until = it == segments.end() ? end : std::min(end, it->first);
      it = segments.emplace(covered, Segment{.end = until, .writer = {}, .readers = {}}).first;
    }
    visit.compare(it->second, it->second.end - covered);
    covered = it->second.end;
    if (visit.now.stream != kHost) {  // what the host launches next comes after it anyway
      visit.leave_in(it->second);
    }
  }
  if (visit.writes && visit.now.stream != kHost) {  // one history from here on
    segments.erase(std::next(segments.lower_bound(begin)), segments.lower_bound(end));
    segments.at(begin).end = end;
  }
}

}  // namespace

std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex); }
Clock& clock(int stream) { return clocks[static_cast<std::size_t>(stream)]; }
Counts& counts(int device) { return counted[static_cast<std::size_t>(device)]; }

void merge(Clock& into, const Clock& from) {
  for (std::size_t stream = 0; stream < into.size(); ++stream) {
    into[stream] = std::max(into[stream], from[stream]);
  }
}

void host_has_seen(int device, const Clock& seen) {
  if (device >= 0) {
    merge(host_knows[static_cast<std::size_t>(device)], seen);
  }
  merge(thread_knows, seen);
}

Clock host_knowledge() {
  Clock known = thread_knows;
  merge(known, host_knows[static_cast<std::size_t>(current_device())]);
  return known;
}

void report(Report::Kind kind, std::string text) {
  const bool is_known =
      std::ranges::any_of(reports, [&](const Report& known) { return known.text == text; });
  if (!is_known && reports.size() < kMostReports) {
    reports.push_back({.kind = kind, .text = std::move(text)});
  }
}

void stamp(const std::string& name, int stream, const std::vector<Access>& accesses) {
  const int device = stream / kStreamsPerDevice;
  Clock& own = clock(stream);
  merge(own, host_knows[static_cast<std::size_t>(device)]);
  merge(own, thread_knows);
  const std::uint64_t tick = ++own[static_cast<std::size_t>(stream)];
  ++counts(device).kernels;
  for (const bool writes : {false, true}) {  // an operator may write what it reads
    for (const Access& range : accesses) {
      if (range.bytes == 0 || range.writes != writes) {
        continue;
      }
      const std::uint64_t block = block_at(range.begin);
      if (block == 0) {
        report(Report::Kind::kUseAfterFree,
               name + " on " + stream_name(stream) + (writes ? " writes " : " reads ") +
                   std::to_string(range.bytes) + " bytes that are freed, or no device memory");
      }
      access(range, {.now = {.stream = stream, .tick = tick, .block = block, .name = name},
                     .writes = writes,
                     .knows = own});
    }
  }
}

void check_host_access(const std::string& name, const Access& range) {
  Clock knows = thread_knows;
  for (const Clock& known : host_knows) {
    merge(knows, known);
  }
  access(range, {.now = {.block = block_at(range.begin), .name = name},
                 .writes = range.writes,
                 .knows = knows});
}

}  // namespace fsdp::test::sim::detail

namespace fsdp::test::sim {

std::vector<Report> take_reports() {
  const auto held = detail::lock();
  return std::exchange(detail::reports, {});
}

Clock clock_of(int stream) {
  const auto held = detail::lock();
  return detail::clock(stream);
}

void join(int stream, const Clock& clock) {
  const auto held = detail::lock();
  detail::merge(detail::clock(stream), clock);
}

}  // namespace fsdp::test::sim
