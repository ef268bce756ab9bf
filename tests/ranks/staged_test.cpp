// SPDX-License-Identifier: Apache-2.0
/// What is the staged transport's own: order of its copies, what it reserves, several ranks' bits,
/// and failures of the transport below. The contract is in transport_contract_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <string>
#include <vector>

#include "comm/device/device_streams.hpp"
#include "comm/staged/staged.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"
#include "support/sim/sim.hpp"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;

at::Tensor full(std::int64_t count, double value, at::ScalarType dtype = at::kFloat) {
  return at::full({count}, value, test::on_device(dtype));
}

void expect_ordered() {
  for (const test::sim::Report& report : test::sim::take_reports()) {
    ADD_FAILURE() << report.text;
  }
}

TEST(Staged, ItSaysThatItBlocksTheHostAndDoes) {
  test::run_ranks("staged", 2, [](const comm::Link& group) {
    EXPECT_EQ(group.transport->traits().waits, comm::Waits::kHost);
    at::Tensor all = full(8, 0);
    const at::Tensor own = full(4, group.rank());
    test::sim::take_counts(test::device_of_rank().index());
    group.transport->all_gather(all, own, {.name = "h.0"})->wait();
    EXPECT_EQ(test::sim::take_counts(test::device_of_rank().index()).host_waits, 2);
  });
  expect_ordered();
}

TEST(Staged, ResultsAreInPlaceForEveryStreamAndSourcesComeFromTheCallers) {
  test::run_ranks("staged", 2, [](const comm::Link& group) {
    const comm::detail::DeviceStreams streams(test::device_of_rank());
    const c10::Stream side = streams.take();
    at::Tensor all = full(8, 0);
    side.wait(streams.record(streams.current()));
    std::unique_ptr<comm::Work> work;
    {
      const c10::StreamGuard on_side(side);
      work = group.transport->all_gather(all, full(4, group.rank() + 1), {.name = "h.0"});
    }
    work->wait();
    EXPECT_EQ(test::to_host(all + 1).sum().item<double>(), 8 + 4 * 3);
  });
  expect_ordered();
}

TEST(Staged, SumsAreThoseOfTheHostToTheBit) {
  const auto source = [](int rank) {
    return at::sin(at::arange(3 * 4099, at::kDouble) * 0.37 + rank).to(at::kFloat);
  };
  test::run_ranks("staged", 3, [&](const comm::Link& group) {
    const at::Tensor mine = source(group.rank());
    at::Tensor on_host = at::ones({4099}), on_device = full(4099, 1);
    const comm::Finish finish{.divisor = 3, .accumulate = true};
    group.transport->reduce_scatter(on_host, mine, finish, {.name = "host"})->wait();
    group.transport->reduce_scatter(on_device, test::to_device(mine), finish, {.name = "device"})
        ->wait();
    EXPECT_TRUE(at::equal(test::to_host(on_device), on_host));
  });
  expect_ordered();
}

TEST(Staged, WhatIsReservedServesTheSteadyState) {
  test::run_ranks("staged", 2, [](const comm::Link& group) {
    const std::int64_t for_sums = group.transport->reserve_staging(8000, 2);
    const std::int64_t for_gathers = group.transport->reserve_gathers(20000, 1);
    EXPECT_GE(for_sums, 2 * 12000);
    EXPECT_GE(for_gathers, 20000);
    EXPECT_LT(for_sums + for_gathers, 60000);
    EXPECT_EQ(group.transport->reserve_gathers(20000, 1), 0);  // there already
    at::Tensor all = full(5000, 0), sum = full(1000, 0);
    for (int round = 0; round < 3; ++round) {
      auto gathering = group.transport->all_gather(all, full(2500, 1), {.name = "h.0"});
      auto reducing = group.transport->reduce_scatter(sum, full(2000, 1), {}, {.name = "h.1"});
      gathering->wait();
      reducing->wait();
      gathering.reset();
      reducing.reset();
      EXPECT_EQ(group.transport->reserve_gathers(20000, 1), 0);
    }
  });
}

TEST(Staged, SeveralRanksShareOneDevice) {
  std::array<double, 3> sums{};
  run_threads(3, [&](World world) {
    const comm::Link link = comm::detail::make_staged_link(world.link(), test::sim::device(5));
    const auto options = at::TensorOptions(at::kFloat).device(test::sim::device(5));
    at::Tensor all = at::zeros({6}, options);
    link.transport->all_gather(all, at::full({2}, world.rank() + 1.0, options), {})->wait();
    sums[static_cast<std::size_t>(world.rank())] = all.to(at::kCPU).sum().item<double>();
  });
  EXPECT_THAT(sums, Each(12.0));
}

TEST(Staged, AFailureBelowIsTheOneThatRanksSee) {
  std::vector<std::string> texts(3);
  test::run_ranks("staged", 3, [&](const comm::Link& group) {
    group.job->set_timeout(milliseconds(600));
    if (group.rank() == 1) {
      return;
    }
    texts[static_cast<std::size_t>(group.rank())] = test::error_of([&] {
      at::Tensor all = full(12, 0);
      group.transport->all_gather(all, full(4, 1), {.unit = 4, .name = "h.4"})->wait();
    });
  });
  EXPECT_THAT(texts[0], HasSubstr("h.4"));
  EXPECT_THAT(texts[2], HasSubstr("h.4"));
}

TEST(Staged, AfterARecoveryItGoesOn) {
  test::run_ranks("staged", 2, [](const comm::Link& group) {
    at::Tensor all = full(8, 0);
    auto lost = group.transport->all_gather(all, full(4, 1), {.name = "h.0"});
    test::meet();
    group.job->recover();
    lost.reset();
    group.transport->all_gather(all, full(4, 2), {.name = "h.0"})->wait();
    EXPECT_EQ(test::to_host(all).sum().item<double>(), 16);
  });
  expect_ordered();
}

}  // namespace
}  // namespace fsdp
