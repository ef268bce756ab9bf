// SPDX-License-Identifier: Apache-2.0
/// Links over parts of the ranks: the contract of comm::Transport holds in each, and
/// collectives of several groups can be under way at once. What fails is in groups_fault_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/failure/collective_log.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/mesh.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/all_transports.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kCounts[] = {0, 1, 13, 70001};

/// Ranks r with r / shard equal are neighbours; those with r % shard equal lie across.
std::vector<int> row_of(int rank, int shard) {
  std::vector<int> ranks;
  for (int i = 0; i < shard; ++i) {
    ranks.push_back(rank / shard * shard + i);
  }
  return ranks;
}

std::vector<int> column_of(int rank, int shard, int replicate) {
  std::vector<int> ranks;
  for (int i = 0; i < replicate; ++i) {
    ranks.push_back(rank % shard + i * shard);
  }
  return ranks;
}

/// Whole numbers: their sums are exact in whatever order.
at::Tensor values(int rank, std::int64_t count, int round = 0) {
  return at::round(at::sin(at::arange(count, at::kDouble) * 0.37 + rank * 1.7 + round * 0.9) * 1e4);
}

/// All operations of a group whose members are `ranks` of the whole, each rank's values its own.
void expect_contract(const comm::Link& group, const std::vector<int>& ranks, int whole_rank) {
  const auto size = static_cast<std::int64_t>(ranks.size());
  ASSERT_EQ(group.size(), size);
  ASSERT_EQ(ranks[static_cast<std::size_t>(group.rank())], whole_rank);
  for (const std::int64_t count : kCounts) {
    at::Tensor all = at::zeros({count * size}, at::kDouble);
    group.transport->all_gather(all, values(whole_rank, count), {.unit = 1, .name = "h.1"})->wait();
    at::Tensor expected = at::zeros({count}, at::kDouble);
    for (std::int64_t r = 0; r < size; ++r) {
      const int rank = ranks[static_cast<std::size_t>(r)];
      ASSERT_TRUE(at::equal(all.narrow(0, r * count, count), values(rank, count)));
      expected += values(rank, count * size, 1).narrow(0, group.rank() * count, count);
    }
    at::Tensor sum = at::ones({count}, at::kDouble);
    const at::Tensor source = group.transport->buffer(count * size * 8).view(at::kDouble);
    source.copy_(values(whole_rank, count * size, 1));
    group.transport->reduce_scatter(sum, source, {.divisor = 2, .accumulate = true}, {.unit = 1})
        ->wait();
    ASSERT_TRUE(at::equal(sum, 1.0 + expected / 2.0)) << "count " << count;
    const int root = group.size() - 1;
    at::Tensor buffer = values(whole_rank, count);
    group.transport->broadcast(buffer, root, {.name = "start"})->wait();
    ASSERT_TRUE(at::equal(buffer, values(ranks.back(), count)));
    at::Tensor shared =
        group.transport->shared_memory(size * 8, {.name = "shared"}).view(at::kDouble);
    shared[group.rank()].fill_(whole_rank);
    group.job->barrier({.name = "written"});
    for (std::int64_t r = 0; r < size; ++r) {
      ASSERT_EQ(shared[r].item<double>(), ranks[static_cast<std::size_t>(r)]);
    }
    group.job->barrier({.name = "read"});
  }
  at::Tensor number = at::full({1}, static_cast<double>(whole_rank));
  group.transport->all_reduce(number, {.name = "norm"});
  double sum = 0;
  for (const int rank : ranks) {
    sum += rank;
  }
  ASSERT_EQ(number.item<double>(), sum);
}

struct Grid {
  int replicate;
  int shard;
};

class Groups : public testing::TestWithParam<std::tuple<std::string, Grid>> {
 protected:
  int replicate() const { return std::get<1>(GetParam()).replicate; }
  int shard() const { return std::get<1>(GetParam()).shard; }
  void run(const test::RankBody& body) {
    test::run_ranks(std::get<0>(GetParam()), replicate() * shard(), body);
  }
};

TEST_P(Groups, KeepTheContractOfATransport) {
  run([&](const comm::Link& world) {
    const std::vector<int> row = row_of(world.rank(), shard());
    const std::vector<int> column = column_of(world.rank(), shard(), replicate());
    const auto by_row = world.split(row, "shard");
    const auto by_column = world.split(column, "replicate");
    EXPECT_THAT(world.transport->traits().name, HasSubstr(by_row.transport->traits().name));
    expect_contract(by_row, row, world.rank());
    expect_contract(by_column, column, world.rank());
    at::Tensor sum = at::ones({1});
    world.transport->all_reduce(sum, {.name = "the whole still works"});
    EXPECT_EQ(sum.item<float>(), static_cast<float>(world.size()));
  });
}

TEST_P(Groups, CollectivesOfSeveralGroupsAreUnderWayAtOnce) {
  constexpr std::int64_t kCount = 4099;
  run([&](const comm::Link& world) {
    const std::vector<int> row = row_of(world.rank(), shard());
    const std::vector<int> column = column_of(world.rank(), shard(), replicate());
    const auto by_row = world.split(row, "shard");
    const auto by_column = world.split(column, "replicate");
    for (int round = 0; round < 20; ++round) {
      at::Tensor all = at::zeros({kCount * world.size()}, at::kDouble);
      at::Tensor of_row = at::zeros({kCount * shard()}, at::kDouble);
      at::Tensor of_column = at::zeros({kCount}, at::kDouble);
      const at::Tensor mine = values(world.rank(), kCount, round);
      const at::Tensor source = values(world.rank(), kCount * replicate(), round);
      // Unequally many, so that numbers of collectives differ between groups.
      auto first = by_row.transport->all_gather(of_row, mine, {.unit = 0});
      auto second = by_column.transport->reduce_scatter(of_column, source, {}, {.unit = 0});
      auto third = world.transport->all_gather(all, mine, {.unit = 0});
      auto fourth = by_row.transport->publish({.name = "fence"});
      second->wait();
      first->wait();
      fourth->wait();
      third->wait();
      at::Tensor expected = at::zeros({kCount}, at::kDouble);
      for (const int rank : column) {
        expected +=
            values(rank, kCount * replicate(), round).narrow(0, by_column.rank() * kCount, kCount);
      }
      ASSERT_TRUE(at::equal(of_column, expected));
      for (int i = 0; i < shard(); ++i) {
        ASSERT_TRUE(at::equal(of_row.narrow(0, i * kCount, kCount),
                              values(row[static_cast<std::size_t>(i)], kCount, round)));
      }
      for (int r = 0; r < world.size(); ++r) {
        ASSERT_TRUE(at::equal(all.narrow(0, r * kCount, kCount), values(r, kCount, round)));
      }
    }
  });
}

using GridCase = std::tuple<std::string, Grid>;

/// Each transport on the grids of as many ranks as it can connect. Over hosts of two ranks, and of
/// three: groups inside a host, one rank of each host, and mixtures.
std::vector<GridCase> grid_cases() {
  std::vector<GridCase> cases;
  for (const Grid grid : {Grid{2, 2}, Grid{3, 1}, Grid{1, 3}, Grid{2, 3}, Grid{3, 2}, Grid{2, 4}}) {
    const int ranks = grid.replicate * grid.shard;
    for (const std::string& name : test::transports({.ranks = {ranks}, .splits = true})) {
      cases.emplace_back(name, grid);
    }
  }
  return cases;
}

std::string grid_name_of(const testing::TestParamInfo<GridCase>& info) {
  const auto& [transport, grid] = info.param;
  return (transport == "shm+gloo" ? "two_levels" : transport) + "_" +
         std::to_string(grid.replicate) + "x" + std::to_string(grid.shard);
}

INSTANTIATE_TEST_SUITE_P(Transports, Groups, testing::ValuesIn(grid_cases()), grid_name_of);

class Split : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, Split,
                         testing::ValuesIn(test::transports({.ranks = {2, 4, 5}, .splits = true})),
                         [](const auto& tested) { return tested.param; });

TEST_P(Split, ServesUnequalGroupsAndGroupsOfGroups) {
  test::run_ranks(GetParam(), 5, [](const comm::Link& world) {
    const bool is_odd = world.rank() % 2 == 1;
    const std::vector<int> mine = is_odd ? std::vector{1, 3} : std::vector{0, 2, 4};
    const auto group = world.split(mine, "parity");
    expect_contract(group, mine, world.rank());
    const std::vector<int> inner = group.rank() < 2 ? std::vector{0, 1} : std::vector{2};
    const auto part = group.split(inner, "part");
    std::vector<int> ranks;
    for (const int rank : inner) {
      ranks.push_back(mine[static_cast<std::size_t>(rank)]);
    }
    expect_contract(part, ranks, world.rank());
  });
}

TEST_P(Split, GroupsOfTheSameRanksAreKeptApartInWhateverOrderTheyStart) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& world) {
    const std::array groups{world.split({0, 1}, "one"), world.split({0, 1}, "other")};
    // Equal in number, label and size, so that only the group tells them apart.
    for (const std::int64_t count : {3, 5000}) {
      std::array<at::Tensor, 2> all{at::zeros({2 * count}), at::zeros({2 * count})};
      std::array<std::unique_ptr<comm::Work>, 2> works;
      for (const std::size_t turn : {0U, 1U}) {
        const std::size_t group = world.rank() == 0 ? turn : 1 - turn;
        const double value = 10.0 * world.rank() + static_cast<double>(group);
        works[group] = groups[group].transport->all_gather(
            all[group], at::full({count}, value, at::kFloat), {.unit = 0, .name = "h.0"});
      }
      for (const std::size_t group : {0U, 1U}) {
        works[group]->wait();
        for (const int rank : {0, 1}) {
          EXPECT_TRUE(all[group]
                          .narrow(0, rank * count, count)
                          .eq(10.0 * rank + static_cast<double>(group))
                          .all()
                          .item<bool>())
              << "group " << group << " rank " << rank;
        }
      }
    }
  });
}

TEST_P(Split, NumbersOfGroupsThatAreGoneAreUsedAgain) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& world) {
    const auto kept = world.split({0, 1}, "kept");
    for (int i = 0; i < 100; ++i) {
      const auto group = world.split({0, 1}, "short-lived");
      at::Tensor sum = at::ones({5000});
      group.transport->all_reduce(sum, {.name = "sum"});
      ASSERT_TRUE(sum.eq(2).all().item<bool>());
    }
    kept.job->barrier({.name = "still there"});
  });
}

TEST_P(Split, Fault020_AGroupOfOneSendsNothing) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& world) {
    const auto alone = world.split({world.rank()}, "alone");
    world.job->set_timeout(std::chrono::milliseconds(300));
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));  // the other one needs it not
    }
    expect_contract(alone, {world.rank()}, world.rank());
    at::Tensor half = at::full({7}, 2.5, at::kBFloat16);
    at::Tensor sum = at::ones({7});
    alone.transport->reduce_scatter(sum, half, {.divisor = 2, .accumulate = true}, {})->wait();
    EXPECT_TRUE(sum.eq(2.25).all().item<bool>());
    world.job->set_timeout(std::chrono::seconds(20));
    world.job->barrier({.name = "end"});
  });
}

/// Rank r passes lists[r]; every rank must throw `code` with the same text, and be in step after.
void expect_refusal(const std::string& transport, const std::vector<std::vector<int>>& lists,
                    ErrorCode code, const std::string& part) {
  test::run_ranks(transport, static_cast<int>(lists.size()), [&](const comm::Link& world) {
    try {
      world.split(lists[static_cast<std::size_t>(world.rank())], "grid");
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.text(), AllOf(HasSubstr("split \"grid\""), HasSubstr(part)));
    }
    world.job->barrier({.name = "after"});
  });
}

TEST_P(Split, WhatIsNoPartitionIsAnErrorOnAllRanks) {
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_refusal(GetParam(), {{0, 1}, {0, 1}, {}}, invalid, "rank 2 gives an empty list");
  expect_refusal(GetParam(), {{0, 1}, {1, 0}, {2}}, invalid, "rank 1 gives a list that does not");
  expect_refusal(GetParam(), {{0, 0}, {1}, {2}}, invalid, "does not ascend: 0, 0");
  expect_refusal(GetParam(), {{0, 1}, {0, 1}, {2, 3}}, invalid,
                 "rank 2 names rank 3, but there are 3");
  expect_refusal(GetParam(), {{0, 1}, {0, 1}, {0, 1}}, invalid, "rank 2 leaves itself out");
  expect_refusal(GetParam(), {{0, 1}, {1, 2}, {1, 2}}, ErrorCode::kMismatch,
                 "rank 0 names the group 0, 1, but rank 1 names 1, 2");
}

TEST_P(Split, AnotherCallOnOneRankIsAMismatch) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& world) {
    const std::string text = test::error_of([&] {
      world.rank() == 0 ? (void)world.split({0, 1}, "shard") : world.job->barrier({.name = "step"});
    });
    EXPECT_THAT(text, AllOf(HasSubstr("split: shard"), HasSubstr("agree #"), HasSubstr("step")));
  });
}

TEST(Split, OverC10dSaysWhatToUse) {
  test::run_ranks("c10d", 2, [](const comm::Link& world) {
    EXPECT_THAT(test::error_of([&] { world.split({0, 1}, "shard"); }),
                AllOf(HasSubstr("[unsupported]"), HasSubstr("gloo or shm")));
  });
}

TEST_P(Split, TheLogOfAGroupNamesItAndItsRanks) {
  testing::internal::CaptureStderr();
  test::run_ranks(GetParam(), 4, [](const comm::Link& world) {
    const auto group = world.split(column_of(world.rank(), 2, 2), "replicate");
    group.job->barrier({.name = "step"});
    world.job->barrier({.name = "all have logs"});
    if (world.rank() == 0) {
      comm::detail::print_collectives();
    }
    world.job->barrier({.name = "end"});
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("rank 3 of 4 (" + GetParam() +
                              ", group \"replicate\" of ranks 1, 3), now: "));
  EXPECT_THAT(text, HasSubstr("agree #1 in \"step\" (group \"replicate\")"));
}

// ---- meshes -----------------------------------------------------------------------------------

TEST(DeviceMesh, NamesItsAxesAndFindsEachRanksPlace) {
  test::on_all_transports(6, 20, [](World world) {
    const DeviceMesh mesh(world, {.replicate = 2, .shard = 3});
    EXPECT_EQ(mesh.describe(), "replicate 2 x shard 3");
    EXPECT_EQ(mesh.index("shard"), world.rank() % 3);
    EXPECT_EQ(mesh.index("replicate"), world.rank() / 3);
    EXPECT_EQ(mesh.shard().rank(), world.rank() % 3);
    EXPECT_EQ(mesh.shard().size(), 3);
    EXPECT_EQ(mesh.size("shard"), 3);
    EXPECT_EQ(mesh.replicate().rank(), world.rank() / 3);
    EXPECT_EQ(mesh.replicate().size(), 2);
    EXPECT_EQ(mesh.size("replicate"), 2);
    EXPECT_EQ(mesh.shard().local_rank(), world.rank() % 3);
    EXPECT_EQ(mesh.shard().local_size(), 3);
    at::Tensor sum = at::full({1}, static_cast<double>(world.rank()));
    mesh.shard().transport().all_reduce(sum, {.name = "rows"});
    EXPECT_EQ(sum.item<double>(), world.rank() < 3 ? 3 : 12);
    mesh.replicate().transport().all_reduce(sum, {.name = "columns"});
    EXPECT_EQ(sum.item<double>(), 15);
    world.barrier();
  });
}

TEST(DeviceMesh, HasAnyAxesInAnyOrderTheLastInnermost) {
  test::on_all_transports(8, 20, [](World world) {
    const DeviceMesh mesh(world, {{"shard", 2}, {"pipeline", 2}, {"tensor", 1}, {"replicate", 2}});
    EXPECT_EQ(mesh.describe(), "shard 2 x pipeline 2 x tensor 1 x replicate 2");
    EXPECT_EQ(mesh.index("shard"), world.rank() / 4);
    EXPECT_EQ(mesh.index("pipeline"), world.rank() / 2 % 2);
    EXPECT_EQ(mesh.index("replicate"), world.rank() % 2);
    EXPECT_EQ(mesh.size("tensor"), 1);
    EXPECT_EQ(mesh.size("expert"), 1) << "an axis that is not there";
    EXPECT_EQ(mesh.index("expert"), 0);
    const auto sum_along = [&](const char* axis) {
      at::Tensor sum = at::full({1}, static_cast<double>(world.rank()));
      mesh.along(axis).transport().all_reduce(sum, {.name = axis});
      return static_cast<int>(sum.item<double>());
    };
    const int rank = world.rank();
    EXPECT_EQ(sum_along("shard"), rank + (rank ^ 4));
    EXPECT_EQ(sum_along("pipeline"), rank + (rank ^ 2));
    EXPECT_EQ(sum_along("replicate"), rank + (rank ^ 1));
    EXPECT_EQ(sum_along("expert"), rank);
    world.barrier();
  });
}

TEST(DeviceMesh, WhatKnowsSomeAxesRefusesOthersUnlessTheyAreTrivial) {
  run_threads(4, [](World world) {
    const DeviceMesh mesh(world, {{"tensor", 2}, {"expert", 1}, {"shard", 2}});
    mesh.refuse_others({"shard", "tensor"}, "a reader");
    EXPECT_THAT(test::error_of([&] { mesh.refuse_others({"replicate", "shard"}, "a reader"); }),
                AllOf(HasSubstr("[unsupported]"),
                      HasSubstr("a reader does not know the axis \"tensor\" of the mesh tensor 2 x "
                                "expert 1 x shard 2, which has 2 ranks")));
  });
}

TEST(DeviceMesh, NamesAreThereAndDistinct) {
  run_threads(2, [](World world) {
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, {{"shard", 2}, {"shard", 1}}); }),
                HasSubstr("an axis \"shard\", whose name is empty or there twice"));
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, {{"", 2}}); }), HasSubstr("is empty"));
    const std::string other = world.rank() == 0 ? "tensor" : "expert";
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, {{other, 2}}); }),
                HasSubstr("rank 0 asks for tensor 2, but rank 1 for expert 2"));
  });
}

TEST(DeviceMesh, TrivialAxesAreTheWorldAndTheRankAlone) {
  for (const std::string transport : {"threads", "c10d"}) {
    test::run_ranks(transport, 2, [](const comm::Link& group) {
      const World world(group, group.rank(), 2);
      const DeviceMesh full(world, 1, 2);
      EXPECT_EQ(&full.shard().job(), group.job.get());
      EXPECT_EQ(full.replicate().size(), 1);
      const DeviceMesh copies(world, 2, 1);
      EXPECT_EQ(&copies.replicate().job(), group.job.get());
      EXPECT_EQ(copies.shard().size(), 1);
      EXPECT_EQ(copies.index("replicate"), world.rank());
      copies.shard().barrier();
      world.barrier();
    });
  }
}

TEST(DeviceMesh, SizesThatDoNotFitOrDifferAreErrorsOnAllRanks) {
  run_threads(4, [](World world) {
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, 2, 3); }),
                AllOf(HasSubstr("[invalid argument]"),
                      HasSubstr("replicate 2 x shard 3 has 6 places, but the world has 4")));
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, 0, 4); }), HasSubstr("0 places"));
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, -2, -2); }), HasSubstr("has 4 places"));
    const int shard = world.rank() == 2 ? 4 : 2;
    EXPECT_THAT(test::error_of([&] { DeviceMesh(world, 4 / shard, shard); }),
                AllOf(HasSubstr("[mismatch]"), HasSubstr("replicate 2 x shard 2, but rank 2 for "
                                                         "replicate 1 x shard 4")));
    world.barrier();
  });
}

}  // namespace
}  // namespace fsdp
