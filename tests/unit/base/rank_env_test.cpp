// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/rank_env.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "fsdp/base/error.hpp"

namespace fsdp::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// The text of the Error that `variables` must cause.
std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.text();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

Variables torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29511"}};
}

Variables changed(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(RankEnvironment, WithoutVariablesOneProcessIsTheWorld) {
  EXPECT_EQ(read({}), RankEnvironment());
  EXPECT_EQ(read({{"MASTER_ADDR", "node0"}, {"LOCAL_RANK", "3"}}), RankEnvironment());
}

TEST(RankEnvironment, TorchrunIsRead) {
  EXPECT_EQ(read(torchrun()), (RankEnvironment{.rank = 5,
                                               .size = 8,
                                               .local_rank = 1,
                                               .local_size = 4,
                                               .master_addr = "node0",
                                               .master_port = 29511,
                                               .source = "torchrun"}));
}

TEST(RankEnvironment, AWorldOfOneNeedsNoMeetingPoint) {
  const RankEnvironment environment = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(environment.size, 1);
  EXPECT_EQ(environment.source, "torchrun");
}

TEST(RankEnvironment, WithoutLocalVariablesAllRanksAreOnThisHost) {
  const RankEnvironment environment =
      read(without(without(torchrun(), "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  EXPECT_EQ(environment.local_rank, 5);
  EXPECT_EQ(environment.local_size, 8);
}

TEST(RankEnvironment, OpenMpiOnOneHostMeetsOnADerivedPort) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_MCA_ess_base_jobid", "1234"}};
  const RankEnvironment one = read(variables);
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(one.local_size, 2);
  EXPECT_EQ(one.master_addr, "127.0.0.1");
  EXPECT_EQ(one.source, "open-mpi");
  EXPECT_GE(one.master_port, 20000);
  EXPECT_LT(one.master_port, 32000);
  const Variables peer =
      changed(changed(variables, "OMPI_COMM_WORLD_RANK", "0"), "OMPI_COMM_WORLD_LOCAL_RANK", "0");
  EXPECT_EQ(read(peer).master_port, one.master_port);
  EXPECT_NE(read(changed(variables, "OMPI_MCA_ess_base_jobid", "99")).master_port, one.master_port);
}

TEST(RankEnvironment, OpenMpiOnSeveralHostsNeedsAMeetingPoint) {
  const Variables variables{{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THAT(refusal(variables), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("2 of 4")));
  EXPECT_EQ(read(changed(variables, "MASTER_ADDR", "node0")).master_addr, "node0");
}

TEST(RankEnvironment, MpichIsRead) {
  const RankEnvironment environment = read({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.size, 3);
  EXPECT_EQ(environment.local_rank, 2);
  EXPECT_EQ(environment.source, "mpich");
}

TEST(RankEnvironment, SlurmIsReadInsideAStepOnly) {
  const Variables allocation{
      {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "77"}};
  EXPECT_EQ(read(allocation), RankEnvironment());
  const RankEnvironment environment = read(changed(allocation, "SLURM_STEP_ID", "0"));
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.size, 4);
  EXPECT_EQ(environment.source, "slurm");
}

TEST(RankEnvironment, SlurmOnSeveralHostsNeedsAMeetingPoint) {
  const Variables step{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                       {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "7"},
                       {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  EXPECT_THAT(refusal(step), HasSubstr("MASTER_ADDR"));
  EXPECT_EQ(read(changed(step, "MASTER_ADDR", "n0")).local_size, 2);
}

TEST(RankEnvironment, TorchrunWinsOverTheSchedulerAroundIt) {
  Variables variables = torchrun();
  variables["SLURM_PROCID"] = "0";
  variables["SLURM_NTASKS"] = "2";
  variables["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(read(variables).source, "torchrun");
}

TEST(RankEnvironment, Fault127_LeftOverVariablesDoNotSplitAJobIntoManyWorlds) {
  const Variables left_over{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  Variables mpirun = left_over;
  mpirun["OMPI_COMM_WORLD_RANK"] = "2";
  mpirun["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_THAT(refusal(mpirun),
              AllOf(HasSubstr("WORLD_SIZE is '1'"), HasSubstr("OMPI_COMM_WORLD_SIZE is '4'")));
  EXPECT_THAT(refusal(changed(changed(left_over, "PMI_RANK", "1"), "PMI_SIZE", "2")),
              HasSubstr("PMI_SIZE is '2'"));
  Variables srun = changed(changed(left_over, "SLURM_PROCID", "1"), "SLURM_NTASKS", "2");
  EXPECT_EQ(read(srun).size, 1) << "an allocation, no step";
  EXPECT_THAT(refusal(changed(srun, "SLURM_STEP_ID", "0")), HasSubstr("SLURM_NTASKS is '2'"));
  EXPECT_EQ(read(changed(mpirun, "FSDP_LAUNCHER", "fsdp")).size, 1) << "mpirun fsdp run";
  EXPECT_EQ(read(changed(mpirun, "TORCHELASTIC_RUN_ID", "x")).size, 1) << "mpirun torchrun";
}

TEST(RankEnvironment, Fault149_AnAddressMayHaveTheBracketsOfAUrl) {
  EXPECT_EQ(read(changed(torchrun(), "MASTER_ADDR", "[::1]")).master_addr, "::1");
  EXPECT_EQ(read(changed(torchrun(), "MASTER_ADDR", "::1")).master_addr, "::1");
}

TEST(RankEnvironment, Fault127_MixUpsNameTheVariableAndItsValue) {
  const auto says = [](const char* name, const char* value) {
    return AllOf(HasSubstr(name), HasSubstr(std::string("'") + value + "'"));
  };
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "8")), says("RANK", "8"));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "-1")), says("RANK", "-1"));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", " 1")), says("RANK", " 1"));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "")), says("RANK", ""));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "one")), says("RANK", "one"));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "1.5")), says("RANK", "1.5"));
  EXPECT_THAT(refusal(changed(torchrun(), "RANK", "99999999999999999999")), HasSubstr("RANK"));
  EXPECT_THAT(refusal(changed(torchrun(), "WORLD_SIZE", "0")), says("WORLD_SIZE", "0"));
  EXPECT_THAT(refusal(changed(torchrun(), "LOCAL_RANK", "4")), says("LOCAL_RANK", "4"));
  EXPECT_THAT(refusal(changed(torchrun(), "LOCAL_WORLD_SIZE", "9")), says("LOCAL_WORLD_SIZE", "9"));
  EXPECT_THAT(refusal(changed(torchrun(), "MASTER_PORT", "70000")), says("MASTER_PORT", "70000"));
  EXPECT_THAT(refusal(changed(torchrun(), "MASTER_PORT", "http")), says("MASTER_PORT", "http"));
  EXPECT_THAT(refusal(changed(torchrun(), "MASTER_ADDR", "")), says("MASTER_ADDR", ""));
  EXPECT_THAT(refusal(changed(torchrun(), "MASTER_ADDR", "a b")), says("MASTER_ADDR", "a b"));
  EXPECT_THAT(refusal(without(torchrun(), "WORLD_SIZE")),
              AllOf(HasSubstr("WORLD_SIZE is not set"), HasSubstr("RANK is '5'")));
  EXPECT_THAT(refusal(without(torchrun(), "RANK")),
              AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE is '8'")));
  EXPECT_THAT(refusal(without(torchrun(), "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(without(torchrun(), "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
}

}  // namespace
}  // namespace fsdp::base
