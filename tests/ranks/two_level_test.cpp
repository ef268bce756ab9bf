// SPDX-License-Identifier: Apache-2.0
/// Shared memory inside a host, Gloo between hosts: the order of its sums, who uses it, and what
/// its two levels tell each other. The contract is in transport_contract_test.cpp, groups in
/// groups_test.cpp, the bytes between hosts in two_hosts_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/two_level/two_level.hpp"
#include "fsdp/base/error.hpp"
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
using testing::HasSubstr;

TEST(RanksPerHost, CountsHostsInARowWithEquallyManyRanks) {
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(comm::ranks_per_host(Hosts{"a", "a", "b", "b"}), 2);
  EXPECT_EQ(comm::ranks_per_host(Hosts{"a", "a", "a", "b", "b", "b"}), 3);
  EXPECT_EQ(comm::ranks_per_host(Hosts{"b", "b", "a", "a", "c", "c"}), 2);
  for (const Hosts& hosts :
       {Hosts{"a", "a"}, Hosts{"a", "b"}, Hosts{"a", "b", "a", "b"}, Hosts{"a", "a", "b"},
        Hosts{"a", "a", "a", "b"}, Hosts{"a", "a", "b", "b", "a", "a"}, Hosts{"a"},
        Hosts{"a", "a", "b", "c"}}) {
    EXPECT_EQ(comm::ranks_per_host(hosts), 0) << hosts.size();
  }
}

at::Tensor values(int rank, std::int64_t count, at::ScalarType dtype) {
  return (at::sin(at::arange(count, at::kDouble) * 0.37 + rank * 1.7) * (3.0 + rank)).to(dtype);
}

TEST(TwoLevels, SumRanksOfAHostInOrderThenHostsAndRoundOnce) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const bool is_low = dtype == at::kBFloat16 || dtype == at::kHalf;
      const at::ScalarType wide = is_low ? at::kFloat : dtype;
      for (const std::int64_t count : {1, 4099, 300001}) {
        const auto of = [&](int rank) { return values(rank, 4 * count, dtype).to(wide); };
        const at::Tensor all = ((of(0) + of(1)) + (of(2) + of(3))) / at::full({}, 3.0, wide);
        const at::Tensor mine = all.narrow(0, group.rank() * count, count);
        const at::Tensor source = values(group.rank(), 4 * count, dtype);
        at::Tensor sum = at::zeros({count}, dtype);
        group.transport->reduce_scatter(sum, source, {.divisor = 3}, {.unit = 1})->wait();
        ASSERT_TRUE(at::equal(sum, mine.to(dtype))) << dtype << " x " << count;
        at::Tensor into = at::ones({count}, wide);
        group.transport
            ->reduce_scatter(into, source, {.divisor = 3, .accumulate = true}, {.unit = 1})
            ->wait();
        ASSERT_TRUE(at::equal(into, 1 + mine)) << dtype << " x " << count;
      }
    }
  });
}

TEST(TwoLevels, ADroppedCollectiveIsCompletedForTheOthers) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    at::Tensor dst = at::zeros({4 * 5000});
    for (int round = 0; round < 3; ++round) {
      auto work = group.transport->all_gather(dst, at::full({5000}, 1.0 + group.rank(), at::kFloat),
                                              {.unit = round});
      if (group.rank() == 1) {
        work.reset();
      } else {
        work->wait();
        EXPECT_EQ(dst.sum().item<float>(), 50000);
      }
      at::Tensor sum = at::zeros({5000});
      auto reducing =
          group.transport->reduce_scatter(sum, at::ones({4 * 5000}), {}, {.unit = round});
      if (group.rank() == 2) {
        reducing.reset();
      } else {
        reducing->wait();
        EXPECT_TRUE(sum.eq(4).all().item<bool>());
      }
    }
    group.job->barrier({.name = "end"});
  });
}

/// All ranks but one start `usual`; then all go on.
void expect_mismatch(const test::Start& usual, const test::Start& of_rank_3) {
  std::array<std::string, 4> texts;
  test::run_ranks("shm+gloo", 4, [&](const comm::Link& group) {
    group.job->set_timeout(seconds(10));
    texts[static_cast<std::size_t>(group.rank())] =
        test::error_of([&] { (group.rank() == 3 ? of_rank_3 : usual)(group)->wait(); });
    at::Tensor sum = at::ones({5000});
    group.transport->all_reduce(sum, {.name = "after"});
    EXPECT_TRUE(sum.eq(4).all().item<bool>());
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("[mismatch]"), HasSubstr("h.0"), HasSubstr("h.1"),
                              HasSubstr("on rank 3")));
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
  }
}

TEST(TwoLevels, Fault004_AMismatchBetweenHostsIsToldOnAllRanks) {
  const auto gather = test::gather(9, at::kFloat, 0, "h.0");
  const auto reduce = test::reduce(9, at::kFloat, 1, "h.1");
  expect_mismatch(gather, reduce);
  expect_mismatch(reduce, gather);
}

TEST(TwoLevels, Fault009_TheOldestThatDiffersIsTheCauseInWhateverOrderRanksWait) {
  std::array<std::string, 4> texts;
  test::run_ranks("shm+gloo", 4, [&](const comm::Link& group) {
    const bool is_odd = group.rank() == 1;
    auto first = test::gather(8, at::kFloat, 0, is_odd ? "h.9" : "h.0")(group);
    auto second = test::reduce(8, at::kFloat, 1, is_odd ? "h.8" : "h.1")(group);
    texts[static_cast<std::size_t>(group.rank())] =
        test::error_of([&] { (group.rank() == 2 ? second : first)->wait(); });
    first.reset();
    second.reset();
  });
  EXPECT_THAT(texts[0], AllOf(HasSubstr("h.0"), HasSubstr("h.9")));
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
  }
}

TEST(TwoLevels, WorkFromBeforeARecoveryIsVoid) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    group.job->barrier({.name = "warm-up"});
    std::unique_ptr<comm::Work> first, second, dropped;
    if (group.rank() != 2) {
      first = test::reduce(5000, at::kFloat, 1, "h.1")(group);
      second = test::gather(5000, at::kFloat, 0, "h.0")(group);
      dropped = test::gather(5000, at::kFloat, 0, "h.0")(group);
    }
    test::meet();
    group.job->recover();
    if (first) {
      EXPECT_NE(test::error_of([&] { first->wait(); }), "no error");
      EXPECT_NE(test::error_of([&] { second->wait(); }), "no error");
    }
    dropped.reset();
    at::Tensor sum = at::ones({5000});
    group.transport->all_reduce(sum, {.name = "after"});
    EXPECT_TRUE(sum.eq(4).all().item<bool>());
  });
}

TEST(TwoLevels, RecoverFromATimeOut) {
  test::run_ranks("shm+gloo", 4, [](const comm::Link& group) {
    for (std::uint64_t generation = 1; generation <= 2; ++generation) {
      group.job->barrier({.name = "warm-up"});
      test::meet();
      group.job->set_timeout(milliseconds(500));
      if (group.rank() == 3) {
        std::this_thread::sleep_for(milliseconds(1500));
      } else {
        EXPECT_THAT(
            test::error_of([&] { test::reduce(5000, at::kFloat, 1, "h.1")(group)->wait(); }),
            HasSubstr("3"));
      }
      group.job->set_timeout(seconds(10));
      group.job->recover();
      EXPECT_EQ(group.job->generation(), generation);
      at::Tensor sum = at::ones({5000});
      group.transport->all_reduce(sum, {.name = "after"});
      EXPECT_TRUE(sum.eq(4).all().item<bool>());
    }
  });
}

// ---- processes, each pair of which takes itself for a host --------------------------------------

std::vector<test::ProcessResult> run_hosts(const std::vector<std::string>& hosts,
                                           const std::function<void(const World&)>& body,
                                           const std::string& transport = "auto") {
  return test::run_processes(
      static_cast<int>(hosts.size()), transport,
      [&](int rank) {
        ::setenv("FSDP_HOST_ID", hosts[static_cast<std::size_t>(rank)].c_str(), 1);
        const std::string text = test::error_of([&] { body(init({.transport = transport})); });
        std::fprintf(stderr, "%s\n", text.c_str());
        std::fflush(nullptr);
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      {.limit = seconds(40), .environment = {{"FSDP_TIMEOUT", "20"}}});
}

TEST(TwoLevels, AreChosenWhereSeveralHostsHaveSeveralRanks) {
  for (const auto& result : run_hosts({"a", "a", "b", "b"}, [](const World& world) {
         EXPECT_EQ(world.transport().traits().name, "shm+gloo");
         world.barrier();
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("no error"));
  }
}

TEST(TwoLevels, AreNotChosenForUnevenHostsAndSaySo) {
  for (const auto& result : run_hosts({"a", "a", "b"}, [](const World& world) {
         EXPECT_EQ(world.transport().traits().name, "gloo");
         world.barrier();
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  for (const auto& result : run_hosts({"a", "b", "b"}, [](const World&) {}, "shm+gloo")) {
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("[invalid argument] transport shm+gloo needs several hosts"),
                      HasSubstr("first elsewhere is rank 1"), HasSubstr("FSDP_HOST_ID")));
  }
}

/// Collectives of every kind, so that ranks wait in both levels.
void step(const World& world) {
  const comm::Link& group = world.link();
  at::Tensor dst = at::zeros({4 * 50000});
  group.transport->all_gather(dst, at::ones({50000}), {.unit = 5, .name = "h.5"})->wait();
  at::Tensor sum = at::zeros({50000});
  group.transport->reduce_scatter(sum, dst, {}, {.unit = 5, .name = "h.5"})->wait();
}

TEST(TwoLevels, Fault009_AKilledRankIsNamedOnBothHosts) {
  const auto results = run_hosts({"a", "a", "b", "b"}, [](const World& world) {
    step(world);
    for (int i = 0;; ++i) {
      if (world.rank() == 2 && i == 20) {
        std::raise(SIGKILL);
      }
      step(world);
    }
  });
  for (const std::size_t rank : {0U, 1U, 3U}) {
    EXPECT_THAT(results[rank].output, AllOf(HasSubstr("[peer failed]"), HasSubstr("rank 2")));
    EXPECT_LT(results[rank].duration, test::in_time(seconds(15)));
  }
}

TEST(TwoLevels, Fault009_APublishedFailureReachesThoseWhoWaitInsideTheOtherHost) {
  const auto results = run_hosts({"a", "a", "b", "b"}, [](const World& world) {
    const auto host =
        world.link().split(world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "host's own");
    EXPECT_EQ(host.transport->traits().name, "shm");
    world.barrier();
    if (world.rank() == 3) {
      world.publish_failure("batch 17 cannot be read");
      std::this_thread::sleep_for(seconds(3));
    } else if (world.rank() == 0) {
      host.job->barrier({.name = "alone"});  // rank 1 never comes
    } else {
      std::this_thread::sleep_for(seconds(3));
    }
  });
  EXPECT_THAT(results[0].output,
              AllOf(HasSubstr("[peer failed]"), HasSubstr("rank 3: batch 17 cannot be read")));
  EXPECT_LT(results[0].duration, test::in_time(seconds(15)));
}

}  // namespace
}  // namespace fsdp
