// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/index.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "archive/index_text.hpp"
#include "fsdp/base/error.hpp"
#include "support/small_checkpoint.hpp"

namespace fsdp::archive {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text, ErrorCode expected = ErrorCode::kCorrupt) {
  try {
    parse_index("there/checkpoint.json", text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.text();
    EXPECT_THAT(error.text(), HasSubstr("there/checkpoint.json"));
    return error.text();
  }
  return "accepted";
}

/// An index in which the first `from` has become `to`, with the sum that it then has.
std::string edited(const Index& index, const std::string& from, const std::string& to) {
  std::string text = to_json(index);
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  text.replace(place, from.size(), to);
  return detail::with_sum(text.substr(0, text.rfind(",\n \"index_crc32\"")));
}

TEST(IndexTest, WhatIsWrittenReadsBack) {
  Index index = test::small_plan().index;
  index.step = 1234567890123;
  index.values["rng"] = {{"nan", std::nan("")}, {"text \"\\\n", std::string("ünï")}};
  index.tensors[0].crc32 = 0xfedcba98u;
  const std::string text = to_json(index);
  const Index read = parse_index("x", text);
  EXPECT_EQ(read.step, index.step);
  ASSERT_EQ(read.tensors.size(), index.tensors.size());
  for (std::size_t i = 0; i < index.tensors.size(); ++i) {
    EXPECT_EQ(read.tensors[i].name, index.tensors[i].name);
    EXPECT_EQ(read.tensors[i].section, index.tensors[i].section);
    EXPECT_EQ(read.tensors[i].shape, index.tensors[i].shape);
    EXPECT_EQ(read.tensors[i].offset, index.tensors[i].offset);
    EXPECT_EQ(read.tensors[i].bytes, index.tensors[i].bytes);
    EXPECT_EQ(read.tensors[i].crc32, index.tensors[i].crc32);
  }
  EXPECT_EQ(read.aliases, index.aliases);
  EXPECT_EQ(read.steps, index.steps);
  EXPECT_EQ(read.values.at("data"), index.values.at("data"));
  EXPECT_EQ(read.values.at("schedule"), index.values.at("schedule"));
  EXPECT_TRUE(std::isnan(std::get<double>(read.values.at("rng").at("nan"))));
  EXPECT_EQ(to_json(read), text) << "equal indexes are equal bytes";
}

TEST(IndexTest, NumbersKeepTheirBitsAndTheirKind) {
  Index index;
  index.values["schedule"] = {{"third", 1.0 / 3},
                              {"one", 1.0},
                              {"count", std::int64_t{1}},
                              {"least", std::int64_t{-5}},
                              {"on", true}};
  EXPECT_EQ(parse_index("x", to_json(index)).values, index.values);
}

TEST(IndexTest, AnyChangedByteIsNoticed) {
  const std::string text = to_json(test::small_plan().index);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_THROW(parse_index("x", changed), Error) << "byte " << i;
  }
  EXPECT_THAT(refusal(text.substr(0, text.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(refusal(text + "\n"), HasSubstr("does not end with its own sum"));
  EXPECT_THAT(refusal(""), HasSubstr("does not end with its own sum"));
}

TEST(IndexTest, Fault110_EachBrokenRuleHasItsOwnMessage) {
  const Index index = test::small_plan().index;
  EXPECT_THAT(refusal(edited(index, "\"version\": 1", "\"version\": 2"), ErrorCode::kUnsupported),
              HasSubstr("version 2"));
  EXPECT_THAT(refusal(edited(index, "fsdp-checkpoint", "other")), HasSubstr("format"));
  EXPECT_THAT(refusal(edited(index, "\"step\": 0", "\"step\": -1")), HasSubstr("-1"));
  EXPECT_THAT(refusal(edited(index, "\"BF16\"", "\"BF17\"")), HasSubstr("BF17"));
  EXPECT_THAT(refusal(edited(index, "\"shape\":[5,3]", "\"shape\":[5,4]")),
              HasSubstr("takes 80 bytes, but its range has 60"));
  EXPECT_THAT(refusal(edited(index, "\"shape\":[5,3]", "\"shape\":[4611686018427387904,4]")),
              HasSubstr("overflows"));
  EXPECT_THAT(refusal(edited(index, "\"file\":\"model.safetensors\"", "\"file\":\"../model\"")),
              HasSubstr("not among the files"));
  EXPECT_THAT(refusal(edited(index, "\"optimizer.safetensors\"", "\"../optimizer.safetensors\"")),
              HasSubstr("cannot be named"));
  EXPECT_THAT(refusal(edited(index, "\"tied\": \"a\"", "\"tied\": \"b\"")),
              HasSubstr("which is not there"));
  EXPECT_THAT(refusal(edited(index, "\"tied\": \"a\"", "\"z\": \"a\"")),
              HasSubstr("yet a tensor has it"));
  EXPECT_THAT(refusal(edited(index, "\"crc32\":\"00000000\"", "\"crc32\":\"0000000g\"")),
              HasSubstr("hexadecimal"));
  EXPECT_THAT(refusal(edited(index, "\"scalar\": {", "\"a\": {")), HasSubstr("twice"));
}

TEST(IndexTest, Fault161_StepsThatNoRunTookAreRefusedByName) {
  Index index = test::small_plan().index;
  const std::string most = std::to_string(std::numeric_limits<std::int64_t>::max());
  EXPECT_THAT(refusal(edited(index, "\"step\": 0", "\"step\": " + most)),
              HasSubstr("step is " + most + ", no run took more than 9007199254740992"));
  EXPECT_THAT(refusal(edited(index, "\"a\": 3", "\"a\": " + most)),
              HasSubstr("steps of 'a' is " + most));
  EXPECT_THAT(refusal(edited(index, "\"a\": 3", "\"a\": -3")), HasSubstr("steps of 'a' is -3"));
}

TEST(IndexTest, RangesThatOverlapOrLeaveHolesAreRefused) {
  Index overlap = test::small_plan().index;
  for (Tensor& tensor : overlap.tensors) {
    tensor.offset -= tensor.name == "z" ? 2 : 0;
  }
  EXPECT_THAT(refusal(to_json(overlap)), HasSubstr("overlap"));
  Index hole = test::small_plan().index;
  hole.files[0].bytes += 2;
  EXPECT_THAT(refusal(to_json(hole)), HasSubstr("end at byte"));
  for (Tensor& tensor : hole.tensors) {
    tensor.offset += tensor.name == "z" ? 2 : 0;
  }
  EXPECT_THAT(refusal(to_json(hole)), HasSubstr("a hole"));
}

TEST(IndexTest, HostileNestingIsRefusedAndNotFollowed) {
  const std::string deep(1 << 20, '[');
  EXPECT_THAT(refusal(detail::with_sum("{\"format\": " + deep)), HasSubstr("nested"));
}

}  // namespace
}  // namespace fsdp::archive
