// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/error.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ErrorTest, WhatIsTheCodeFollowedByTheText) {
  const Error error(ErrorCode::kMismatch, "rank 0 has 3 units, rank 1 has 4");
  EXPECT_STREQ(error.what(), "[mismatch] rank 0 has 3 units, rank 1 has 4");
  EXPECT_EQ(error.text(), "rank 0 has 3 units, rank 1 has 4");
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
}

TEST(ErrorTest, FailWritesItsPartsOneAfterTheOther) {
  try {
    fail(ErrorCode::kIo, "wrote ", 3, " of ", 4.5, " bytes to ", std::string("a.bin"));
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "wrote 3 of 4.5 bytes to a.bin");
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
}

TEST(ErrorTest, ACheckThrowsItsOwnCodeOnlyWhenItFails) {
  const int batch = -2;
  EXPECT_NO_THROW(FSDP_CHECK(batch < 0, ErrorCode::kInvalidArgument, "unused"));
  try {
    FSDP_CHECK(batch > 0, ErrorCode::kInvalidArgument, "batch is ", batch, ", must be positive");
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "batch is -2, must be positive");
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ErrorTest, ACheckEvaluatesItsConditionOnceAndItsMessageOnlyOnFailure) {
  int conditions = 0;
  int messages = 0;
  const auto condition = [&] { return ++conditions > 0; };
  const auto message = [&] { return ++messages; };
  FSDP_CHECK(condition(), ErrorCode::kInternal, message());
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(messages, 0);
}

TEST(ErrorTest, ABrokenInvariantNamesConditionAndPlace) {
  const int pins = 0;
  EXPECT_NO_THROW(FSDP_ASSERT(pins == 0, "unused"));
  try {
    FSDP_ASSERT(pins > 0, "unit ", 7, " is released without a touch");
    FAIL() << "the assertion passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("pins > 0"), HasSubstr("error_test.cpp:"),
                      HasSubstr("unit 7 is released without a touch"), HasSubstr("report")));
  }
}

TEST(ErrorTest, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kMismatch, ErrorCode::kNotFound,
                         ErrorCode::kCorrupt, ErrorCode::kTimeout, ErrorCode::kPeerFailed,
                         ErrorCode::kUnsupported, ErrorCode::kIo, ErrorCode::kInternal}) {
    names.emplace_back(to_string(code));
    EXPECT_NE(names.back(), "unknown");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace fsdp
