// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "fsdp/base/error.hpp"
#include "fsdp/data/tokenize.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenCacheTest : public ::testing::Test {
 protected:
  TokenCacheTest() { directory_.write("text", "In the beginning"); }
  std::string at(const std::string& name) const { return directory_.path(name); }
  std::string cached(const std::string& cache) const {
    return cached_tokens({at("text")}, "bytes", at(cache));
  }
  std::string refusal(const std::string& cache) const {
    return test::error_of([&] { cached(cache); });
  }
  test::TemporaryDirectory directory_;
};

TEST_F(TokenCacheTest, Fault160_TheDirectoryIsThisUsersAlone) {
  const std::string made = cached("new/fsdp/tokens/");
  struct stat status{};
  ASSERT_EQ(::stat(at("new/fsdp/tokens").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0700u);
  EXPECT_EQ(cached("new/fsdp/tokens"), made) << "the second time it is there";

  for (const mode_t mode : {mode_t{0777}, mode_t{0770}, mode_t{01777}}) {
    ASSERT_EQ(::chmod(at("new/fsdp/tokens").c_str(), mode), 0);
    EXPECT_THAT(refusal("new/fsdp/tokens"),
                AllOf(HasSubstr("can be written by others (mode 77"), HasSubstr("chmod 700")));
  }
  ASSERT_EQ(::chmod(at("new/fsdp/tokens").c_str(), 0755), 0);
  EXPECT_EQ(cached("new/fsdp/tokens"), made);

  fs::create_symlink(at("new/fsdp/tokens"), at("link"));
  EXPECT_THAT(refusal("link"), HasSubstr("is a link: somebody else may choose"));
  EXPECT_THAT(refusal("text"), HasSubstr("is no directory"));
}

TEST_F(TokenCacheTest, Fault160_ALinkInPlaceOfTokensIsNotFollowed) {
  const std::string made = cached("cache");
  fs::rename(made, at("planted.bin"));
  fs::create_symlink(at("planted.bin"), made);
  EXPECT_THAT(refusal("cache"), HasSubstr("is no regular file: it was not made here"));
  fs::remove(made);
  fs::create_symlink(at("nowhere"), made);
  EXPECT_THAT(refusal("cache"), HasSubstr("is no regular file"));
  EXPECT_FALSE(fs::exists(at("nowhere"))) << "nothing is written through a link";
}

TEST_F(TokenCacheTest, Fault160_AnotherUsersDirectoryAndTokensAreRefused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can give a file to another user";
  }
  const std::string made = cached("cache");
  ASSERT_EQ(::chown(made.c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal("cache"), HasSubstr("is another user's: it was not made here"));
  ASSERT_EQ(::chown(at("cache").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal("cache"), AllOf(HasSubstr("belongs to user 12345, this is user 0"),
                                      HasSubstr("set XDG_CACHE_HOME")));
}

}  // namespace
}  // namespace fsdp::data
