// SPDX-License-Identifier: Apache-2.0
/// What the tests package_core and package_lm leave behind, as a user of the installed library has
/// it; and what a configuration says that cannot work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/command.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;

/// The consumer includes one header and links one target.
TEST(Package, Fault135_AProgramOfAnotherProjectRunsOnTwoRanks) {
  const std::string packages = FSDP_PACKAGES;
  const CommandResult result = run_command({packages + "/lm/prefix/bin/fsdp", "run", "-n", "2",
                                            "--", packages + "/core/build/consumer"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 parameters on rank 0 of 2"));
  EXPECT_THAT(result.out, HasSubstr("2 parameters on rank 1 of 2"));
}

/// A folder that CMake takes for a LibTorch of version 9.9.9.
class FakeLibTorch {
 public:
  FakeLibTorch() {
    std::filesystem::create_directories(directory_.path("include"));
    directory_.write("TorchConfig.cmake",
                     "set(Torch_FOUND TRUE)\n"
                     "set(Torch_VERSION 9.9.9)\n"
                     "set(TORCH_INSTALL_PREFIX ${CMAKE_CURRENT_LIST_DIR})\n"
                     "set(TORCH_INCLUDE_DIRS ${CMAKE_CURRENT_LIST_DIR}/include)\n");
  }

  /// What CMake says of a project of `source` that gets this LibTorch.
  CommandResult configure(const std::string& source, const std::string& more = "-DMORE=") const {
    return run_command({FSDP_CMAKE, "-G", FSDP_GENERATOR, "-S", source, "-B",
                        directory_.path("build"), "-DTorch_DIR=" + directory_.path(),
                        "-DCMAKE_CXX_COMPILER=" FSDP_COMPILER, more});
  }

 private:
  TemporaryDirectory directory_;
};

void expect_one_error(const CommandResult& result, const std::string& text) {
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr(text));
  const std::size_t first = result.err.find("CMake Error");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(result.err.find("CMake Error", first + 1), std::string::npos) << result.err;
}

TEST(Package, Fault135_ALibTorchWithoutDistributedIsOneClearError) {
  expect_one_error(FakeLibTorch().configure(FSDP_SOURCE_DIR),
                   "was built without torch.distributed");
}

TEST(Package, Fault135_AnotherLibTorchThanTheLibrarysIsOneClearError) {
  expect_one_error(
      FakeLibTorch().configure(FSDP_SOURCE_DIR "/tests/package/installed",
                               "-Dfsdp_DIR=" FSDP_PACKAGES "/core/prefix/lib/cmake/fsdp"),
      "but 9.9.9 was");
}

}  // namespace
}  // namespace fsdp::test
