// SPDX-License-Identifier: Apache-2.0
#include "fsdp/timeline/trace_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <utility>

#include "base/unfinished.hpp"
#include "checkpoint/together.hpp"
#include "comm/clock.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/job.hpp"
#include "trace/chrome.hpp"
#include "trace/timeline.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Writes a file that appears whole or not at all.
void write_whole(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  base::Unfinished file(path.string(), base::PathKind::kFile);
  std::ofstream out(file.path());
  write(out);
  out.close();
  FSDP_CHECK(out.good(), ErrorCode::kIo, "[write_trace] '", path.string(),
             "' cannot be written: is the disk full?");
  file.finish();
}

fs::path file_of(const fs::path& directory, int rank) {
  return directory / ("rank-" + std::to_string(rank) + ".json");
}

void write_lines(const fs::path& path, const std::string& head,
                 const std::vector<std::string>& lines) {
  write_whole(path, [&](std::ostream& out) {
    out << head;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      out << (i == 0 ? "" : ",\n") << lines[i];
    }
    out << trace::kChromeTail;
  });
}

/// Appends the events of a rank's file; false when it is not there or of another trace.
bool append_events(std::ostream& out, const fs::path& path, const std::string& head,
                   bool& is_first) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line) || line + "\n" != head) {
    return false;
  }
  while (std::getline(in, line) && line != "]}") {
    if (!line.empty() && line.back() == ',') {
      line.pop_back();
    }
    if (!line.empty()) {
      out << (is_first ? "" : ",\n") << line;
      is_first = false;
    }
  }
  return true;
}

/// All ranks' files in one; returns the ranks that have none of this trace.
std::vector<int> join(const fs::path& directory, const std::string& head, int ranks) {
  std::vector<int> missing;
  write_whole(directory / "trace.json", [&](std::ostream& out) {
    out << head;
    bool is_first = true;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!append_events(out, file_of(directory, rank), head, is_first)) {
        missing.push_back(rank);
      }
    }
    out << trace::kChromeTail;
  });
  return missing;
}

trace::Who describe(const Sharded& sharded, const World& world, std::int64_t clock_offset_ns) {
  trace::Who who{.rank = world.rank(), .host = host_name(), .clock_offset_ns = clock_offset_ns};
  for (const UnitInfo& unit : sharded.report().units) {
    who.units.push_back(unit.name);
  }
  return who;
}

}  // namespace

TraceFiles write_trace(const Sharded& sharded, const World& world, trace::Recorder& recorder,
                       const std::string& directory) {
  comm::Job& job = world.job();
  const comm::ClockOffset clock = comm::clock_offset(job);
  const std::vector<std::int64_t> errors = comm::gather_values(job, clock.error_ns, "write_trace");
  const auto key = comm::value_of_first(job, std::random_device{}(), "write_trace");
  const std::string head = trace::chrome_head(std::to_string(key));
  const fs::path place = directory;

  checkpoint::detail::together(world, "write_trace", [&] {
    std::error_code error;
    fs::create_directories(place, error);
    FSDP_CHECK(!error, ErrorCode::kIo, "[write_trace] '", directory,
               "' cannot be made: ", error.message());
    write_lines(file_of(place, world.rank()), head,
                trace::chrome_events(trace::make_timeline(recorder.take()),
                                     describe(sharded, world, clock.offset_ns)));
  });
  TraceFiles files{.path = (place / "trace.json").string(),
                   .clock_error_ns = *std::ranges::max_element(errors)};
  checkpoint::detail::together(world, "write_trace", [&] {
    if (world.rank() == 0) {
      files.missing = join(place, head, world.size());
    }
  });
  std::vector<std::uint8_t> is_missing(static_cast<std::size_t>(world.size()));
  for (int rank : files.missing) {
    is_missing[static_cast<std::size_t>(rank)] = 1;
  }
  job.broadcast_bytes(std::as_writable_bytes(std::span(is_missing)), 0, {.name = "write_trace"});
  files.missing.clear();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (is_missing[static_cast<std::size_t>(rank)] != 0) {
      files.missing.push_back(rank);
    }
  }
  return files;
}

}  // namespace fsdp
