// SPDX-License-Identifier: Apache-2.0
/// The program of a build without language models: it runs and checks, and says what it lacks.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "support/command.hpp"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

CommandResult run_without_lm(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::getenv("FSDP_WITHOUT_LM"));
  return run_command(arguments);
}

class MissingCommandTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MissingCommandTest, SaysSoInOneLineWhateverFollows) {
  const std::string name = GetParam();
  for (const std::vector<std::string>& rest : std::vector<std::vector<std::string>>{
           {}, {"--help"}, {"--steps", "3"}, {"path", "--prompt", "In "}}) {
    std::vector<std::string> arguments{name};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    const CommandResult result = run_without_lm(arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.err, "fsdp: '" + name +
                              "' is not in this program, which was built without language models "
                              "(FSDP_BUILD_LM=OFF); it has run and checkpoint\n");
    EXPECT_THAT(result.out, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(All, MissingCommandTest,
                         ::testing::Values("train", "generate", "tokenize"));

TEST(WithoutLMTest, RunsRanks) {
  const CommandResult result = run_without_lm({"run", "-n", "2", "--", "printenv", "WORLD_SIZE"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '2'), 2) << result.out;
}

TEST(WithoutLMTest, TellsRanksTheDeviceThatTheCommandLineNames) {
  const CommandResult result =
      run_without_lm({"run", "-n", "2", "--device", "cuda:1", "--", "printenv", "FSDP_DEVICE"});
  EXPECT_EQ(result.code, 0) << result.err;
  std::size_t lines = 0;
  for (std::size_t at = result.out.find("cuda:1"); at != std::string::npos;
       at = result.out.find("cuda:1", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2) << result.out;
}

TEST(WithoutLMTest, ReadsCheckpoints) {
  const CommandResult result = run_without_lm({"checkpoint", "ls", "."});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no checkpoint in '.'"));
}

TEST(WithoutLMTest, HelpSaysWhatIsMissing) {
  const CommandResult result = run_without_lm({"--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("not in this build: needs FSDP_BUILD_LM=ON"));
}

}  // namespace
}  // namespace fsdp::test
