// SPDX-License-Identifier: Apache-2.0
/// A group that some ranks saw fail and others did not: everybody learns of it at once, and
/// recover() makes it usable again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

std::unique_ptr<comm::Work> start_gather(const comm::Link& group, const at::Tensor& dst) {
  return group.transport->all_gather(dst, at::full({4}, static_cast<float>(group.rank())),
                                     {.unit = 7, .name = "h.7"});
}

void expect_usable(const comm::Link& group, std::uint64_t generation) {
  EXPECT_EQ(group.job->generation(), generation);
  for (int i = 0; i < 3; ++i) {
    at::Tensor dst = at::full({4 * group.size()}, -1.0F);
    start_gather(group, dst)->wait();
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_TRUE(dst.narrow(0, r * 4, 4).eq(r).all().item<bool>());
    }
    at::Tensor sum = at::zeros({4});
    group.transport->reduce_scatter(sum, dst, {}, {.unit = 7, .name = "h.7"})->wait();
    EXPECT_TRUE(sum.eq(group.rank() * group.size()).all().item<bool>());
  }
}

class Recovery : public testing::TestWithParam<std::string> {};

TEST_P(Recovery, Fault008_ATimeOutHealsWhenAllRanksRecover) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    group.transport->reserve_staging(48, 1);
    group.job->barrier({.name = "warm-up"});
    test::meet();
    group.job->set_timeout(milliseconds(400));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(900));
    } else {
      at::Tensor dst = at::zeros({12});
      EXPECT_THAT(test::error_of([&] { start_gather(group, dst)->wait(); }), HasSubstr("1"));
    }
    group.job->set_timeout(seconds(10));
    group.job->recover();
    expect_usable(group, 1);
  });
}

TEST_P(Recovery, Fault008_ARankThatRecoversEndsTheOthersWaitsAtOnce) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    group.job->barrier({.name = "warm-up"});
    test::meet();
    group.job->set_timeout(seconds(30));
    if (group.rank() != 1) {
      at::Tensor dst = at::zeros({12});
      const auto start = std::chrono::steady_clock::now();
      const std::string text = test::error_of([&] { start_gather(group, dst)->wait(); });
      EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
      EXPECT_THAT(text, HasSubstr("rank 1"));
      EXPECT_THAT(text, HasSubstr("it called recover()"));
      EXPECT_THAT(text, HasSubstr("\"h.7\""));
    }
    group.job->recover();
    expect_usable(group, 1);
  });
}

TEST_P(Recovery, Fault009_APublishedFailureIsTheFirstCauseOnAllRanks) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    group.job->barrier({.name = "warm-up"});
    test::meet();
    group.job->set_timeout(seconds(30));
    if (group.rank() == 2) {
      group.job->publish_failure("batch 17 cannot be read");
    }
    for (int i = 0; i < 2; ++i) {
      if (group.rank() != 2) {
        at::Tensor dst = at::zeros({12});
        EXPECT_THAT(test::error_of([&] { start_gather(group, dst)->wait(); }),
                    HasSubstr("batch 17 cannot be read"));
      }
    }
    group.job->recover();
    expect_usable(group, 1);
  });
}

TEST_P(Recovery, ARankThatDoesNotRecoverIsNamed) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    group.job->barrier({.name = "warm-up"});
    test::meet();
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(1500));
    } else {
      group.job->set_timeout(milliseconds(500));
      EXPECT_THAT(test::error_of([&] { group.job->recover(); }), HasSubstr("missing: 1"));
      std::this_thread::sleep_for(milliseconds(1000));
    }
    group.job->set_timeout(seconds(10));
    group.job->recover();
    expect_usable(group, 1);
  });
}

TEST_P(Recovery, WorkFromBeforeIsVoid) {
  test::run_ranks(GetParam(), 3, [](const comm::Link& group) {
    group.job->barrier({.name = "warm-up"});
    at::Tensor old = at::full({12}, 5.0F);
    std::unique_ptr<comm::Work> first, second;
    if (group.rank() != 2) {
      first = start_gather(group, old);
      second = start_gather(group, old);
    }
    test::meet();
    group.job->recover();
    if (first) {
      EXPECT_NE(test::error_of([&] { first->wait(); }), "no error");
    }
    first.reset();
    second.reset();
    expect_usable(group, 1);
  });
}

TEST_P(Recovery, ManyRecoveriesLeaveTheGroupUsable) {
  test::run_ranks(GetParam(), 2, [](const comm::Link& group) {
    for (std::uint64_t generation = 1; generation <= 5; ++generation) {
      test::meet();
      group.job->recover();
      expect_usable(group, generation);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Recovery,
                         testing::ValuesIn(test::transports({.ranks = {2, 3}, .recovers = true})),
                         [](const auto& tested) { return tested.param; });

TEST(Recovery, IsRefusedWhereTheBackendBelongsToTheCaller) {
  test::run_ranks("c10d", 2, [](const comm::Link& group) {
    EXPECT_THAT(test::error_of([&] { group.job->recover(); }), HasSubstr("cannot connect again"));
  });
}

}  // namespace
}  // namespace fsdp
