// SPDX-License-Identifier: Apache-2.0
#include "fsdp/format/safetensors.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <ctime>

#include "fsdp/base/error.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::format {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string prefix(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    prefix[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  }
  return prefix + json + std::string(data_bytes, '\0');
}

struct Refusal {
  ErrorCode code;
  std::string text;
};

Refusal refusal_of(const std::string& bytes) {
  const fsdp::test::TemporaryDirectory directory;
  try {
    read_safetensors_header(directory.write("model.safetensors", bytes));
  } catch (const Error& error) {
    return {error.code(), error.text()};
  }
  return {ErrorCode::kInternal, "accepted"};
}

constexpr const char* kTwoFloats = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

/// The header of a file with so many tensors, all of them empty.
std::string header_of(int tensors) {
  std::string json = "{";
  for (int i = 0; i < tensors; ++i) {
    json += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) +
            R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  return json + "}";
}

/// Processor time of parsing it, the least of three tries.
double seconds_for(int tensors) {
  const std::string json = header_of(tensors);
  const auto bytes = static_cast<std::int64_t>(json.size()) + 8;
  double least = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    EXPECT_EQ(parse_safetensors_header("m", json, bytes).tensors.size(),
              static_cast<std::size_t>(tensors));
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(SafetensorsReaderTest, Fault159_TimeGrowsAsTheNumberOfTensors) {
  const double few = seconds_for(5'000), many = seconds_for(40'000);
  EXPECT_LT(many, 24 * few) << "8 times as many; 64 times as long if each looked at all before: "
                            << few << " and " << many << " s";
}

TEST(SafetensorsReaderTest, Fault159_NamesTwiceAreFoundAmongMany) {
  std::string json = header_of(1000);
  json.replace(json.find("\"t999\""), 6, "\"t998\"");
  try {
    parse_safetensors_header("m", json, static_cast<std::int64_t>(json.size()) + 8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("the header has the name 't998' twice"));
  }
}

TEST(SafetensorsLayoutTest, HeaderIsPaddedToEightAndOffsetsAreAbsolute) {
  const auto layout = plan_safetensors({{"a", "F32", {2, 3}}, {"b", "F32", {}}, {"c", "F32", {0}}});
  EXPECT_EQ(layout.header.size() % 8, 0u);
  const auto begin = static_cast<std::int64_t>(layout.header.size());
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{begin, begin + 24, begin + 28}));
  EXPECT_EQ(layout.file_bytes, begin + 28);
}

TEST(SafetensorsLayoutTest, WiderElementsComeFirstSoThatAllAreAligned) {
  const auto layout =
      plan_safetensors({{"byte", "U8", {3}}, {"half", "BF16", {5}}, {"wide", "F64", {1}}});
  const auto begin = static_cast<std::int64_t>(layout.header.size());
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{begin + 18, begin + 8, begin}));
}

TEST(SafetensorsLayoutTest, WhatIsPlannedReadsBack) {
  const auto layout = plan_safetensors({{"h.0.w\"\\\n\x01", "BF16", {3, 5}}, {"ünï", "F64", {7}}},
                                       {{"format", "pt"}, {"steps", "7"}});
  const fsdp::test::TemporaryDirectory directory;
  const auto path = directory.write(
      "m",
      layout.header +
          std::string(static_cast<std::size_t>(layout.file_bytes) - layout.header.size(), 'x'));
  const auto header = read_safetensors_header(path);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].entry.name, "ünï");
  EXPECT_EQ(header.tensors[0].offset, layout.offsets[1]);
  EXPECT_EQ(header.tensors[1].entry.name, "h.0.w\"\\\n\x01");
  EXPECT_EQ(header.tensors[1].offset, layout.offsets[0]);
  EXPECT_EQ(header.tensors[1].bytes, 30);
  EXPECT_EQ(header.tensors[1].entry.shape, (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(header.metadata.at("steps"), "7");
}

TEST(SafetensorsLayoutTest, RefusesWhatNoReaderCouldRead) {
  EXPECT_THROW(plan_safetensors({{"a", "F32", {1}}, {"a", "F32", {1}}}), Error);
  EXPECT_THROW(plan_safetensors({{"a", "float", {1}}}), Error);
  EXPECT_THROW(plan_safetensors({{"a", "F32", {-1}}}), Error);
  EXPECT_THROW(plan_safetensors({{"a", "F32", {1LL << 40, 1LL << 40}}}), Error);
  EXPECT_THROW(plan_safetensors({{"__metadata__", "F32", {1}}}), Error);
}

TEST(SafetensorsReaderTest, AcceptsTheSmallestFiles) {
  EXPECT_EQ(refusal_of(file_of("{}", 0)).text, "accepted");
  EXPECT_EQ(refusal_of(file_of(kTwoFloats, 8)).text, "accepted");
}

TEST(SafetensorsReaderTest, NamesAMissingFile) {
  try {
    read_safetensors_header("/nowhere/model.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.text(), HasSubstr("/nowhere/model.safetensors"));
  }
}

struct BadFile {
  const char* name;
  std::string bytes;
  ErrorCode code;
  const char* says;
};

class SafetensorsRefusesTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(SafetensorsRefusesTest, WithItsOwnMessage) {
  const Refusal refusal = refusal_of(GetParam().bytes);
  EXPECT_EQ(refusal.code, GetParam().code) << refusal.text;
  EXPECT_THAT(refusal.text, HasSubstr(GetParam().says));
}

std::string entry(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsRefusesTest,
    ::testing::Values(
        BadFile{"Empty", "", ErrorCode::kCorrupt, "has 0 bytes, too few"},
        BadFile{"HeaderLongerThanFile", file_of(kTwoFloats, 8).substr(0, 30), ErrorCode::kCorrupt,
                "claims a header of 54 bytes but has 30 bytes in all"},
        BadFile{"HugeLength", std::string(16, '\xff'), ErrorCode::kCorrupt,
                "claims a header of 18446744073709551615 bytes"},
        BadFile{"Truncated", file_of(kTwoFloats, 7), ErrorCode::kCorrupt, "truncated?"},
        BadFile{"TooLong", file_of(kTwoFloats, 9), ErrorCode::kCorrupt,
                "1 more than its header describes"},
        BadFile{"BadJson", file_of("{\"a\": ", 0), ErrorCode::kCorrupt, "is not JSON"},
        BadFile{"BadUtf8", file_of("{\"\xff\": 1}", 0), ErrorCode::kCorrupt, "is not JSON"},
        BadFile{"NotAnObject", file_of("[1]", 0), ErrorCode::kCorrupt, "not an object"},
        BadFile{"NameTwice",
                file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                        R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        0),
                ErrorCode::kCorrupt, "'a' twice"},
        BadFile{"UnknownDtype",
                file_of(entry(R"("dtype":"F12","shape":[2],"data_offsets":[0,8])"), 8),
                ErrorCode::kUnsupported, "unknown dtype 'F12'"},
        BadFile{"RangeDoesNotFitShape",
                file_of(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
                ErrorCode::kCorrupt, "F32 [3] takes 12 bytes, but its data_offsets are 0 to 8"},
        BadFile{"EndBeforeBegin",
                file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8),
                ErrorCode::kCorrupt, "8 to 0"},
        BadFile{"NegativeSize",
                file_of(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8),
                ErrorCode::kCorrupt, "a size is -2"},
        BadFile{"FractionalSize",
                file_of(entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8),
                ErrorCode::kCorrupt, "a size is 2.0"},
        BadFile{"OverflowingShape",
                file_of(entry(R"("dtype":"F32","shape":[4294967296,4294967296],)"
                              R"("data_offsets":[0,8])"),
                        8),
                ErrorCode::kCorrupt, "overflows"},
        BadFile{"OffsetBeyondInt64",
                file_of(entry(R"("dtype":"F32","shape":[0],)"
                              R"("data_offsets":[18446744073709551615,18446744073709551615])"),
                        8),
                ErrorCode::kCorrupt, "its begin is 18446744073709551615"},
        BadFile{"MissingField", file_of(entry(R"("dtype":"F32","shape":[2])"), 8),
                ErrorCode::kCorrupt, "is not described by"},
        BadFile{"Overlap",
                file_of(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                        8),
                ErrorCode::kCorrupt, "'a' and 'b' overlap"},
        BadFile{"Hole",
                file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                        8),
                ErrorCode::kCorrupt, "1 bytes before tensor 'b' belong to no tensor"},
        BadFile{"MetadataNotText", file_of(R"({"__metadata__":{"a":1}})", 0), ErrorCode::kCorrupt,
                "__metadata__ 'a' is not a string"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace fsdp::format
