// SPDX-License-Identifier: Apache-2.0
#include "fsdp/timeline/trace_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

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

/// A file that appears whole or not at all.
class WholeFile {
 public:
  explicit WholeFile(fs::path path)
      : path_(std::move(path)), draft_(path_.string() + ".partial"), out_(draft_) {
    check();
  }
  ~WholeFile() {
    if (!is_done_) {
      std::error_code ignored;
      fs::remove(draft_, ignored);
    }
  }
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  std::ofstream& out() { return out_; }
  void commit() {
    out_.close();
    check();
    std::error_code error;
    fs::rename(draft_, path_, error);
    FSDP_CHECK(!error, ErrorCode::kIo, "'", path_.string(), "': ", error.message());
    is_done_ = true;
  }

 private:
  void check() {
    FSDP_CHECK(out_.good(), ErrorCode::kIo, "'", draft_.string(),
               "' cannot be written: is the disk full, the directory there and writable?");
  }

  fs::path path_, draft_;
  std::ofstream out_;
  bool is_done_ = false;
};

fs::path file_of(const fs::path& directory, int rank) {
  return directory / ("rank-" + std::to_string(rank) + ".json");
}

void write_lines(const fs::path& path, const std::string& head,
                 const std::vector<std::string>& lines) {
  WholeFile file(path);
  file.out() << head;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    file.out() << (i == 0 ? "" : ",\n") << lines[i];
  }
  file.out() << trace::kChromeTail;
  file.commit();
}

/// All ranks' files in one; returns the ranks that have none of this trace.
std::vector<int> join(const fs::path& directory, const std::string& head, int ranks) {
  WholeFile file(directory / "trace.json");
  file.out() << head;
  std::vector<int> missing;
  bool is_first = true;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream in(file_of(directory, rank));
    std::string line;
    if (!std::getline(in, line) || line + "\n" != head) {
      missing.push_back(rank);  // none, or one of an earlier trace
      continue;
    }
    while (std::getline(in, line) && line != "]}") {
      if (!line.empty() && line.back() == ',') {
        line.pop_back();
      }
      if (line.empty()) {
        continue;
      }
      file.out() << (is_first ? "" : ",\n") << line;
      is_first = false;
    }
  }
  file.out() << trace::kChromeTail;
  file.commit();
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
