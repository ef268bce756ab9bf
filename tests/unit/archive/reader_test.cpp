// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/reader.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "archive/draft.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReaderTest : public ::testing::Test {
 protected:
  ReaderTest() {
    test::save_small(directory_.path(), 5, 3, {.documents = {{"config.json", "{}"}}});
  }
  std::string path() const { return directory_.path(step_name(5)); }
  std::string file(const std::string& name) const { return path() + "/" + name; }

  static void flip(const std::string& path, std::int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 0x40);
    file.seekp(offset);
    file.put(byte);
  }
  std::string refusal() const {
    return test::error_of([&] { Checkpoint{path()}; });
  }
  test::TemporaryDirectory directory_;
};

TEST_F(ReaderTest, AGoodOneIsGood) {
  EXPECT_TRUE(verify_checkpoint(path()).empty());
  EXPECT_EQ(test::wrong_in_small(path(), 5), "");
}

TEST_F(ReaderTest, VerifyFindsEveryFlippedByteOfEveryFile) {
  for (const auto& entry : fs::directory_iterator(path())) {
    const std::string name = entry.path().string();
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(entry.file_size()); ++at) {
      flip(name, at);
      EXPECT_FALSE(verify_checkpoint(path()).empty()) << name << " byte " << at;
      flip(name, at);
    }
  }
  EXPECT_TRUE(verify_checkpoint(path()).empty());
}

TEST_F(ReaderTest, VerifyNamesFileTensorAndBothSums) {
  const Checkpoint checkpoint(path());
  const Tensor& tensor = *checkpoint.index().find(Section::kModel, "b.weight");
  flip(file("model.safetensors"), tensor.offset + 9);
  EXPECT_THAT(verify_checkpoint(path()),
              ElementsAre(::testing::AllOf(HasSubstr("model.safetensors"), HasSubstr("'b.weight'"),
                                           HasSubstr("the index says"))));
}

TEST_F(ReaderTest, Fault110_EachKindOfDamageHasItsOwnMessage) {
  const auto bytes = fs::file_size(file("model.safetensors"));
  fs::resize_file(file("model.safetensors"), bytes - 1);
  EXPECT_THAT(refusal(), HasSubstr("truncated?"));
  fs::resize_file(file("model.safetensors"), bytes + 1);
  EXPECT_THAT(refusal(), HasSubstr("something was added"));
  fs::resize_file(file("model.safetensors"), bytes);
  flip(file("model.safetensors"), 7);  // the most significant byte of the header's length
  EXPECT_THAT(refusal(), HasSubstr("claims a header of"));
  flip(file("model.safetensors"), 7);
  fs::remove(file("config.json"));
  EXPECT_THAT(refusal(), HasSubstr("config.json' of 2 bytes is missing"));
  fs::remove(file(kIndexName));
  EXPECT_THAT(refusal(), HasSubstr("it is incomplete, or no checkpoint"));
  fs::remove_all(path());
  EXPECT_THAT(refusal(), HasSubstr("there is no such directory"));
}

TEST_F(ReaderTest, AHeaderThatSaysOtherThanTheIndexIsRefused) {
  std::ifstream in(file("model.safetensors"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::size_t place = bytes.find("\"F32\",\"shape\":[5,3]");
  ASSERT_NE(place, std::string::npos);
  std::string other = bytes;
  other.replace(place, 5, "\"I32\"");
  std::ofstream(file("model.safetensors"), std::ios::binary) << other;
  EXPECT_THAT(refusal(), HasSubstr("'a' is I32 [5, 3]"));
  other = bytes;
  other.replace(bytes.find("\"half\""), 6, "\"hall\"");
  std::ofstream(file("model.safetensors"), std::ios::binary) << other;
  EXPECT_THAT(refusal(), HasSubstr("'hall', which the index does not have"));
}

TEST_F(ReaderTest, RangesOutsideOfATensorAreRefused) {
  const Checkpoint checkpoint(path());
  const Tensor& tensor = *checkpoint.index().find(Section::kModel, "z");
  char buffer[64];
  EXPECT_NO_THROW(checkpoint.read(tensor, 41, 0, buffer));
  EXPECT_THROW(checkpoint.read(tensor, 40, 2, buffer), Error);
  EXPECT_THROW(checkpoint.read(tensor, -1, 2, buffer), Error);
  EXPECT_EQ(checkpoint.index().find(Section::kModel, "nothing"), nullptr);
  EXPECT_EQ(checkpoint.index().find(Section::kState, "z"), nullptr);
}

}  // namespace
}  // namespace fsdp::archive
