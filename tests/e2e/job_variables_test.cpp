// SPDX-License-Identifier: Apache-2.0
/// Variables that cannot be right: exit code 2 and the variable with its value, before any wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using Variables = std::vector<std::pair<std::string, std::string>>;

struct MixUp {
  const char* name;
  Variables variables;  ///< over a job of two in which this is rank 1
  std::vector<std::string> says;
};

class JobVariablesTest : public testing::TestWithParam<MixUp> {};

TEST_P(JobVariablesTest, Fault127_AreRefusedWithNameAndValue) {
  const TemporaryDirectory directory;
  Variables variables{{"RANK", "1"},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", "9"},
                      {"OMP_NUM_THREADS", "1"}};
  variables.insert(variables.end(), GetParam().variables.begin(), GetParam().variables.end());
  const CommandResult result =
      run_command(std::vector<std::string>{fsdp_program()} +
                      tiny_training(directory.write("text", sample_text(4000)), ""),
                  variables);
  EXPECT_EQ(result.code, 2);
  for (const std::string& text : GetParam().says) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  EXPECT_THAT(result.err, testing::Not(HasSubstr("waiting")));
}

INSTANTIATE_TEST_SUITE_P(
    All, JobVariablesTest,
    testing::Values(
        MixUp{"RankTooHigh", {{"RANK", "2"}}, {"RANK is '2'", "WORLD_SIZE is 2"}},
        MixUp{"RankNegative", {{"RANK", "-1"}}, {"fsdp: RANK is '-1'"}},
        MixUp{"RankWithBlank", {{"RANK", "1 "}}, {"RANK is '1 '"}},
        MixUp{"RankEmpty", {{"RANK", ""}}, {"fsdp: RANK is ''"}},
        MixUp{"SizeZero", {{"WORLD_SIZE", "0"}}, {"WORLD_SIZE is '0'"}},
        MixUp{"SizeAWord", {{"WORLD_SIZE", "two"}}, {"WORLD_SIZE is 'two'"}},
        MixUp{"LocalRankTooHigh",
              {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}},
              {"LOCAL_RANK is '1'"}},
        MixUp{"LocalSizeTooHigh", {{"LOCAL_WORLD_SIZE", "3"}}, {"LOCAL_WORLD_SIZE is '3'"}},
        MixUp{"PortTooHigh", {{"MASTER_PORT", "65536"}}, {"MASTER_PORT is '65536'"}},
        MixUp{"AddressEmpty", {{"MASTER_ADDR", ""}}, {"MASTER_ADDR is ''"}},
        MixUp{"LeftOverFromAnotherJob",
              {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}},
              {"WORLD_SIZE is '2'", "OMPI_COMM_WORLD_SIZE is '4'"}},
        MixUp{"TimeOutAWord", {{"FSDP_SETUP_TIMEOUT", "long"}}, {"FSDP_SETUP_TIMEOUT is 'long'"}},
        MixUp{
            "InterfaceExcluded", {{"GLOO_SOCKET_IFNAME", "^lo"}}, {"GLOO_SOCKET_IFNAME is '^lo'"}}),
    [](const auto& tested) { return tested.param.name; });

TEST(JobVariables, AnUnknownLogLevelIsSaid) {
  const TemporaryDirectory directory;
  const CommandResult result =
      run_command(std::vector<std::string>{fsdp_program()} +
                      laid_over(tiny_training(directory.write("text", sample_text(4000)), ""),
                                {"--ranks", "1", "--steps", "1", "--sample", "0"}),
                  {{"FSDP_LOG", "DEBUG"}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("FSDP_LOG is 'DEBUG', must be debug, info, warn or quiet"));
}

}  // namespace
}  // namespace fsdp::test
