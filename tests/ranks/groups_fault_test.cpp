// SPDX-License-Identifier: Apache-2.0
/// What a failure in one group of ranks means for the others: they are one job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/mesh.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

using Clock = std::chrono::steady_clock;

class GroupFaults : public testing::TestWithParam<std::string> {};

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  return info.param == "shm+gloo" ? "two_levels" : info.param;
}

INSTANTIATE_TEST_SUITE_P(Transports, GroupFaults,
                         testing::ValuesIn(test::transports({.ranks = {4}, .splits = true})),
                         name_of);

comm::Link row_of(const comm::Link& world) {
  return world.split(world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "shard");
}

std::unique_ptr<comm::Work> start_gather(const comm::Link& group, const at::Tensor& dst, int unit) {
  return group.transport->all_gather(dst, at::full({4}, static_cast<float>(group.rank())),
                                     {.unit = unit, .name = "h." + std::to_string(unit)});
}

void expect_usable(const comm::Link& group, std::uint64_t generation) {
  EXPECT_EQ(group.job->generation(), generation);
  at::Tensor sum = at::ones({5000});
  group.transport->all_reduce(sum, {.name = "after"});
  EXPECT_TRUE(sum.eq(group.size()).all().item<bool>());
}

TEST_P(GroupFaults, Fault004_AMismatchInsideAGroupNamesRanksOfTheWholeJob) {
  std::array<std::string, 4> texts;
  test::run_ranks(GetParam(), 4, [&](const comm::Link& world) {
    const auto row = row_of(world);
    if (world.rank() >= 2) {
      at::Tensor dst = at::zeros({8});
      texts[static_cast<std::size_t>(world.rank())] =
          test::error_of([&] { start_gather(row, dst, world.rank())->wait(); });
    }
    expect_usable(row, 0);
    expect_usable(world, 0);
  });
  EXPECT_EQ(texts[2], texts[3]);
  EXPECT_THAT(texts[2],
              AllOf(HasSubstr("[mismatch]"), HasSubstr("of unit \"h.2\" (group \"shard\")"),
                    HasSubstr("on rank 2 met"), HasSubstr("on rank 3")));
}

TEST_P(GroupFaults, Fault009_AFailureInOneGroupEndsTheWaitsInTheOther) {
  test::run_ranks(GetParam(), 4, [](const comm::Link& world) {
    const auto row = row_of(world);
    world.job->barrier({.name = "warm-up"});
    test::meet();
    world.job->set_timeout(seconds(30));
    const auto start = Clock::now();
    if (world.rank() == 3) {
      row.job->publish_failure("batch 17 cannot be read");
    } else if (world.rank() == 1) {  // keeps rank 0 waiting in the other group
      std::this_thread::sleep_for(milliseconds(1000));
    } else {
      at::Tensor dst = at::zeros({8});
      EXPECT_THAT(
          test::error_of([&] { start_gather(row, dst, 7)->wait(); }),
          AllOf(HasSubstr("rank 3"), HasSubstr("batch 17 cannot be read"), HasSubstr("\"shard\"")));
      EXPECT_LT(Clock::now() - start, seconds(10));
    }
    row.job->recover();
    expect_usable(row, 1);
    expect_usable(world, 1);
  });
}

TEST_P(GroupFaults, Fault008_ATimeOutInAGroupHealsWhenAllRanksRecover) {
  test::run_ranks(GetParam(), 4, [](const comm::Link& world) {
    const auto row = row_of(world);
    row.transport->reserve_staging(32, 2);
    world.job->barrier({.name = "warm-up"});
    test::meet();
    world.job->set_timeout(milliseconds(500));
    at::Tensor dst = at::zeros({8});
    if (world.rank() != 2) {
      std::this_thread::sleep_for(milliseconds(1500));
    } else {
      EXPECT_THAT(test::error_of([&] { start_gather(row, dst, 7)->wait(); }),
                  AllOf(HasSubstr("[time-out]"), HasSubstr("missing: 3"), HasSubstr("\"shard\"")));
    }
    world.job->set_timeout(seconds(10));
    world.job->recover();
    expect_usable(row, 1);
    expect_usable(world, 1);
    const auto again = world.split({0, 1, 2, 3}, "made later");
    test::meet();
    world.job->recover();
    expect_usable(again, 2);
    expect_usable(row, 2);
  });
}

TEST_P(GroupFaults, WorkOfAGroupFromBeforeIsVoid) {
  test::run_ranks(GetParam(), 4, [](const comm::Link& world) {
    const auto row = row_of(world);
    at::Tensor dst = at::zeros({8});
    std::unique_ptr<comm::Work> old;
    if (world.rank() % 2 == 0) {
      old = start_gather(row, dst, 7);
    }
    test::meet();
    world.job->recover();
    if (old) {
      EXPECT_NE(test::error_of([&] { old->wait(); }), "no error");
    }
    old.reset();
    expect_usable(row, 1);
  });
}

// ---- processes --------------------------------------------------------------------------------

class GroupProcesses : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(
    Transports, GroupProcesses,
    testing::ValuesIn(test::transports({.ranks = {4}, .splits = true, .has_processes = true})),
    name_of);

std::vector<test::ProcessResult> run_meshes(const std::string& transport,
                                            const std::function<void(const DeviceMesh&)>& body) {
  return test::run_processes(4, "mesh",
                             [&](int rank) {
                               if (transport == "shm+gloo") {
                                 ::setenv("FSDP_HOST_ID", rank < 2 ? "east" : "west", 1);
                               }
                               const World world = init({.transport = transport});
                               const DeviceMesh mesh(world, 2, 2);
                               world.barrier();
                               const std::string text = test::error_of([&] { body(mesh); });
                               std::fprintf(stderr, "%s\n", text.c_str());
                               std::fflush(nullptr);
                               std::_Exit(0);
                             },
                             {.limit = seconds(40), .environment = {{"FSDP_TIMEOUT", "20"}}});
}

/// One collective after another in the shard group, then one in the replicate group.
void step(const DeviceMesh& mesh) {
  at::Tensor dst = at::zeros({8});
  start_gather(mesh.shard().link(), dst, 5)->wait();
  start_gather(mesh.replicate().link(), dst, 6)->wait();
}

TEST_P(GroupProcesses, Fault009_AKilledRankIsNamedInEveryGroup) {
  const auto results = run_meshes(GetParam(), [](const DeviceMesh& mesh) {
    if (mesh.world().rank() == 3) {
      std::raise(SIGKILL);
    }
    step(mesh);
    step(mesh);
  });
  // Rank 0 shares no group with rank 3: it waits for ranks 1 and 2, which do.
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("[peer failed]"), HasSubstr("rank 3")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(15)));
  }
}

TEST_P(GroupProcesses, Fault009_ASleepingRankIsNamedInEveryGroup) {
  const auto results = run_meshes(GetParam(), [](const DeviceMesh& mesh) {
    mesh.world().job().set_timeout(milliseconds(1000));
    if (mesh.world().rank() == 3) {
      std::this_thread::sleep_for(seconds(5));
      std::_Exit(0);
    }
    step(mesh);
    step(mesh);
  });
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_THAT(results[rank].output, AnyOf(HasSubstr("[time-out]"), HasSubstr("[peer failed]")));
    EXPECT_THAT(results[rank].output, AnyOf(HasSubstr("missing: 3"), HasSubstr("for rank 3"),
                                            HasSubstr("groups: 3"), HasSubstr("collective: 3")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(15)));
  }
}

}  // namespace
}  // namespace fsdp
