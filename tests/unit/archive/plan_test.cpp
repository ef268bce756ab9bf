// SPDX-License-Identifier: Apache-2.0
#include "archive/plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"
#include "layout/unit_layout.hpp"
#include "support/error_of.hpp"

namespace fsdp::archive {
namespace {

using ::testing::HasSubstr;

/// Throws, naming the tensor and the byte, unless the ranges of all ranks together hold every byte
/// of every tensor once.
void check_coverage(const std::vector<Tensor>& tensors,
                    const std::vector<std::vector<ByteRange>>& ranges_by_rank) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> parts(tensors.size());
  for (const auto& ranges : ranges_by_rank) {
    for (const ByteRange& range : ranges) {
      parts.at(range.tensor).emplace_back(range.tensor_offset, range.bytes);
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::sort(parts[i].begin(), parts[i].end());
    std::int64_t end = 0;
    for (const auto& [begin, bytes] : parts[i]) {
      FSDP_CHECK(begin == end, ErrorCode::kInternal, "'", tensors[i].name, "': byte ",
                 std::min(begin, end), begin < end ? " is in two ranges" : " is in no range");
      end += bytes;
    }
    FSDP_CHECK(end == tensors[i].bytes, ErrorCode::kInternal, "'", tensors[i].name, "': byte ", end,
               end < tensors[i].bytes ? " is in no range" : " is beyond the tensor");
  }
}

/// Each rank's slices when `tensors` are the parameters of one unit.
std::vector<Slice> slices_of(const layout::UnitLayout& unit, int rank) {
  std::vector<Slice> slices;
  for (int i = 0; i < unit.parameters(); ++i) {
    const layout::ParameterPart piece = unit.piece(i, rank);
    slices.push_back({piece.parameter_offset, piece.parameter_offset + piece.numel});
  }
  return slices;
}

std::vector<std::vector<ByteRange>> ranges_of(const std::vector<Tensor>& tensors, int ranks,
                                              std::int64_t align) {
  std::vector<std::int64_t> numels;
  for (const Tensor& tensor : tensors) {
    numels.push_back(numel(tensor.shape));
  }
  const layout::UnitLayout unit(numels, ranks, align);
  std::vector<std::vector<ByteRange>> ranges;
  for (int rank = 0; rank < ranks; ++rank) {
    ranges.push_back(plan_ranges(tensors, slices_of(unit, rank)));
  }
  return ranges;
}

TEST(PlanTest, OneFileWhenAllFitsAndSeveralWhenNot) {
  const std::vector<format::TensorEntry> entries = {
      {"a", "F32", {10}}, {"b", "F32", {10}}, {"c", "F32", {30}}, {"d", "F32", {1}}};
  const FilePlan one = plan_files(Section::kModel, entries, {}, 1000);
  ASSERT_EQ(one.files.size(), 1u);
  EXPECT_EQ(one.files[0].name, "model.safetensors");
  EXPECT_EQ(weight_map_json(one), "");
  const FilePlan several = plan_files(Section::kModel, entries, {}, 80);
  ASSERT_EQ(several.files.size(), 3u);
  EXPECT_EQ(several.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(several.tensors[1].file, several.files[0].name);
  EXPECT_EQ(several.tensors[2].file, several.files[1].name) << "a tensor is not cut";
  EXPECT_EQ(several.tensors[3].file, several.files[2].name);
  EXPECT_THAT(weight_map_json(several), HasSubstr("\"total_size\": 204"));
  EXPECT_TRUE(plan_files(Section::kModel, {}, {}, 80).files.empty());
}

TEST(PlanTest, RefusesNamesThatFilesWouldShare) {
  const std::vector<format::TensorEntry> twice = {{"a", "F32", {10}}, {"a", "F32", {10}}};
  EXPECT_THAT(test::error_of([&] { plan_files(Section::kModel, twice, {}, 40); }),
              HasSubstr("two tensors are named 'a'"));
  EXPECT_THROW(plan_files(Section::kModel, {}, {}, 0), Error);
}

TEST(PlanTest, RefusesSlicesOutsideOfATensor) {
  const auto tensors = plan_files(Section::kModel, {{"a", "F32", {10}}}, {}, 80).tensors;
  EXPECT_THROW(plan_ranges(tensors, {{0, 11}}), Error);
  EXPECT_THROW(plan_ranges(tensors, {{-1, 3}}), Error);
  EXPECT_THROW(plan_ranges(tensors, {{5, 4}}), Error);
  EXPECT_THROW(plan_ranges(tensors, {}), Error);
  EXPECT_TRUE(plan_ranges(tensors, {{10, 10}}).empty());
}

TEST(PlanTest, CoverageNamesTheFirstByteThatIsWrong) {
  const auto tensors = plan_files(Section::kModel, {{"a", "F32", {10}}}, {}, 80).tensors;
  const auto ranges = [&](Slice one, Slice other) {
    return std::vector{plan_ranges(tensors, {one}), plan_ranges(tensors, {other})};
  };
  EXPECT_NO_THROW(check_coverage(tensors, ranges({0, 4}, {4, 10})));
  const auto message = [&](Slice one, Slice other) {
    return test::error_of([&] { check_coverage(tensors, ranges(one, other)); });
  };
  EXPECT_THAT(message({0, 5}, {4, 10}), HasSubstr("byte 16 is in two ranges"));
  EXPECT_THAT(message({0, 3}, {4, 10}), HasSubstr("byte 12 is in no range"));
  EXPECT_THAT(message({0, 3}, {3, 9}), HasSubstr("byte 36 is in no range"));
}

// Property: at any world size, alignment and mix of dtypes, ranks' ranges hold each byte once.
TEST(PlanTest, RangesOfAllRanksCoverEverythingOnce) {
  std::mt19937 random(20240701);
  const std::vector<std::string> dtypes = {"F32", "F64", "BF16", "U8"};
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](std::int64_t limit) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
    };
    std::vector<format::TensorEntry> entries;
    for (std::int64_t i = below(12); i >= 0; --i) {
      std::vector<std::int64_t> shape;
      for (std::int64_t d = below(4); d > 0; --d) {
        shape.push_back(below(8));
      }
      entries.push_back(
          {"t" + std::to_string(i), dtypes[static_cast<std::size_t>(below(4))], shape});
    }
    const FilePlan plan = plan_files(Section::kModel, entries, {}, 1 + below(400));
    const int ranks = static_cast<int>(1 + below(9));
    EXPECT_NO_THROW(check_coverage(plan.tensors, ranges_of(plan.tensors, ranks, 1 + below(40))))
        << "round " << round;
  }
}

TEST(PlanTest, Fault099_PaddingReachesNoFile) {
  const std::vector<format::TensorEntry> rows = {{"0", "F32", {1, 1}},
                                                 {"1", "F32", {2, 1}},
                                                 {"2", "F32", {3, 1}},
                                                 {"3", "F32", {5, 1}},
                                                 {"4", "F32", {7, 1}}};
  const FilePlan plan = plan_files(Section::kModel, rows, {}, 1 << 20);
  ASSERT_EQ(plan.files.size(), 1u);
  EXPECT_EQ(plan.files[0].bytes, 18 * 4 + std::ssize(plan.files[0].head));
  check_coverage(plan.tensors, ranges_of(plan.tensors, 4, 32));
}

TEST(PlanTest, Fault114_512RanksPlanWithoutAWordExchanged) {
  std::vector<format::TensorEntry> entries;
  for (int layer = 0; layer < 96; ++layer) {
    for (const char* name : {".w1", ".w2", ".w3", ".b", ".norm", ".q", ".k", ".v"}) {
      entries.push_back({std::to_string(layer) + name, "F32", {1024, 1023}});
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const FilePlan plan = plan_files(Section::kModel, entries, {}, std::int64_t{1} << 30);
  const auto ranges = ranges_of(plan.tensors, 512, 32);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  check_coverage(plan.tensors, ranges);
  EXPECT_EQ(ranges.size(), 512u);
  RecordProperty("plan_ms", static_cast<int>(seconds.count() * 1e3));
#ifdef NDEBUG
  EXPECT_LT(seconds.count(), 1.0);
#endif
}

}  // namespace
}  // namespace fsdp::archive
