// SPDX-License-Identifier: Apache-2.0
#include "base/unfinished.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "fsdp/base/error.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::base {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class UnfinishedTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return directory_.path(name); }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      all.insert(entry.path().filename().string());
    }
    return all;
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  test::TemporaryDirectory directory_;
};

TEST_F(UnfinishedTest, Fault155_OfTwoForOnePlaceTheLastStaysWhole) {
  Unfinished first(at("model"), PathKind::kFile), second(at("model"), PathKind::kFile);
  ASSERT_NE(first.path(), second.path());
  std::ofstream(first.path()) << "first";
  std::ofstream(second.path()) << "second";
  EXPECT_FALSE(fs::exists(at("model")));
  second.finish();
  EXPECT_EQ(text_of(at("model")), "second");
  first.finish();
  EXPECT_EQ(text_of(at("model")), "first");
  EXPECT_THAT(names(), ElementsAre("model"));
}

TEST_F(UnfinishedTest, WhatIsNotFinishedIsRemoved) {
  directory_.write("model", "mine");
  {
    Unfinished file(at("model"), PathKind::kFile);
    Unfinished folder(at("parts"), PathKind::kDirectory);
    std::ofstream(folder.path() + "/inside") << "some";
  }
  EXPECT_THAT(names(), ElementsAre("model"));
  EXPECT_EQ(text_of(at("model")), "mine");
}

TEST_F(UnfinishedTest, Fault155_OnlyWhatAKilledProcessLeftIsRemoved) {
  std::optional<Unfinished> alive(std::in_place, at("model"), PathKind::kFile);
  const std::string of_alive = fs::path(alive->path()).filename().string();
  fs::create_directory(at(".model.partial-0123456789abcdef"));
  directory_.write(".model.partial-0123456789abcdef/inside", "left by one that was killed");
  for (const char* mine :
       {"model.partial", ".model.partial", ".model.partial-2", ".other.partial-0123456789abcdef"}) {
    directory_.write(mine, "the user's");
  }
  Unfinished(at("model"), PathKind::kFile);
  EXPECT_THAT(names(), UnorderedElementsAre(".model.partial", ".model.partial-2", of_alive,
                                            ".other.partial-0123456789abcdef", "model.partial"));
}

TEST_F(UnfinishedTest, AFolderThatIsNotThereIsNamed) {
  try {
    Unfinished(at("nowhere/model"), PathKind::kFile);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.text(), ::testing::HasSubstr("nowhere/.model.partial-"));
  }
}

}  // namespace
}  // namespace fsdp::base
