// SPDX-License-Identifier: Apache-2.0
/// A trace says what the engine's counters say, of all ranks, in a file that other programs read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "fsdp/timeline/trace_files.hpp"
#include "support/chain.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kLinks = 4;

json read(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return json::parse(in).at("traceEvents");
}

/// Two steps of a chain on each of `ranks` threads, and what rank 0 counted in the second, which
/// is traced.
Counters trace_second_step(int ranks, const std::string& directory, TraceFiles* files = nullptr) {
  Counters counters;
  run_threads(ranks, [&](World world) {
    trace::Recorder recorder;
    Chain model(kLinks, 8);
    Options options = test_options(chain_units());
    options.debug.observer = recorder.observer();
    Sharded sharded = fully_shard(model, world, options);
    const auto step = [&] {
      const auto scope = trace_scope("step");
      model->forward(torch::ones({2, 8})).sum().backward();
    };
    step();
    sharded.reset_counters();
    recorder.start();
    step();
    recorder.stop();
    if (world.rank() == 0) {
      counters = sharded.report().counters;
    }
    const TraceFiles written = write_trace(sharded, world, recorder, directory);
    if (files != nullptr && world.rank() == ranks - 1) {
      *files = written;
    }
  });
  return counters;
}

int count(const json& events, int rank, const std::string& category) {
  int found = 0;
  for (const json& event : events) {
    found +=
        event.at("ph") == "X" && event.at("pid") == rank && event.at("cat") == category ? 1 : 0;
  }
  return found;
}

TEST(TraceFiles, Fault134_TheFileOfAllRanksHasEveryGatherAndReductionWithItsUnitsName) {
  const TemporaryDirectory directory;
  TraceFiles files;
  const Counters counters = trace_second_step(3, directory.path("t"), &files);
  const json events = read(directory.path("t/trace.json"));
  EXPECT_EQ(files.path, directory.path("t/trace.json"));
  EXPECT_THAT(files.missing, testing::IsEmpty());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count(events, rank, "gather") + count(events, rank, "gather, not used"),
              counters.gathers);
    EXPECT_EQ(count(events, rank, "reduce"), counters.reduce_scatters);
    EXPECT_EQ(count(events, rank, "program"), 1);
    EXPECT_GE(count(events, rank, "compute"), 2 * kLinks + 1) << "forward and backward";
  }
  std::set<std::string> names;
  for (const json& event : events) {
    names.insert(event.at("name"));
  }
  for (const char* name : {"(root)", "link0", "link3", "step", "gathered bytes"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
}

TEST(TraceFiles, Fault134_EachArrowLeadsFromAGatherToALaterComputationOfItsUnit) {
  const TemporaryDirectory directory;
  trace_second_step(2, directory.path("t"));
  const json events = read(directory.path("t/trace.json"));
  /// The slice of a thread that begins at a time.
  const auto slice_at = [&](const json& end) -> json {
    for (const json& event : events) {
      if (event.at("ph") == "X" && event.at("pid") == end.at("pid") &&
          event.at("tid") == end.at("tid") && event.at("ts") == end.at("ts")) {
        return event;
      }
    }
    return {};
  };
  std::map<std::string, json> starts;
  int arrows = 0;
  for (const json& event : events) {
    if (event.at("ph") == "s") {
      starts[event.at("id")] = event;
    } else if (event.at("ph") == "f") {
      const json from = slice_at(starts.at(event.at("id"))), to = slice_at(event);
      ASSERT_FALSE(from.is_null() || to.is_null());
      EXPECT_EQ(from.at("name"), to.at("name"));
      EXPECT_LE(from.at("ts").get<double>(), to.at("ts").get<double>());
      ++arrows;
    }
  }
  EXPECT_EQ(arrows, count(events, 0, "gather") + count(events, 1, "gather"));
}

TEST(TraceFiles, FilesOfAnEarlierTraceOfMoreRanksAreLeftOut) {
  const TemporaryDirectory directory;
  trace_second_step(3, directory.path("t"));
  TraceFiles files;
  trace_second_step(2, directory.path("t"), &files);
  EXPECT_THAT(files.missing, testing::IsEmpty());
  for (const json& event : read(directory.path("t/trace.json"))) {
    EXPECT_LT(event.at("pid"), 2);
  }
}

TEST(TraceFiles, APlaceThatCannotBeWrittenIsToldOnAllRanks) {
  const TemporaryDirectory directory;
  directory.write("file", "");
  try {
    trace_second_step(2, directory.path("file/t"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.text(), HasSubstr("[write_trace] '" + directory.path("file/t")));
  }
}

TEST(TraceFiles, AnUnfinishedFileIsNotLeftBehind) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path("t/trace.json"));  // in the way
  EXPECT_THROW(trace_second_step(2, directory.path("t")), Error);
  for (const auto& entry : std::filesystem::directory_iterator(directory.path("t"))) {
    EXPECT_THAT(entry.path().filename().string(), testing::Not(HasSubstr(".partial")));
  }
}

}  // namespace
}  // namespace fsdp::test
