// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/temporary_directory.hpp"

namespace fsdp::train::detail {
namespace {

TEST(EventFileTest, SumsAreThoseOfTheStandard) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

TEST(EventFileTest, BeginsWithItsVersionAndGrowsByARecordPerStep) {
  fsdp::test::TemporaryDirectory directory;
  EventFile events(directory.path("new/run"));
  const auto path = std::filesystem::directory_iterator(directory.path("new/run"))->path();
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const auto size = std::filesystem::file_size(path);
  events.write({.step = 1, .loss = 2});
  const auto one = std::filesystem::file_size(path) - size;
  events.write({.step = 2, .loss = 1});
  EXPECT_EQ(std::filesystem::file_size(path), size + 2 * one);
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("brain.Event:2"), std::string::npos);
  EXPECT_NE(text.find("grad_norm"), std::string::npos);
  EXPECT_EQ(text.find("val_loss"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::train::detail
