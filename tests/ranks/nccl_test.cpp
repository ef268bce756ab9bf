// SPDX-License-Identifier: Apache-2.0
/// What is nccl's own: order on streams, no wait of the host, and what goes wrong inside of NCCL,
/// by a stand-in for its library on simulated devices. The contract of a transport is in
/// transport_contract_test.cpp, which runs over it, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/device_streams.hpp"
#include "comm/nccl/nccl.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"
#include "support/nccl_stand_in/control.hpp"
#include "support/sim/sim.hpp"

namespace fsdp {
namespace {

using Fault = test::nccl_stand_in::Fault;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::nccl_stand_in::control;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

class Nccl : public testing::Test {
 protected:
  Nccl() {
    control().release();
    control().take_violations();
    control().take_calls();
    test::sim::take_reports();
  }
  ~Nccl() override { control().release(); }

  /// Nothing that NCCL does not allow, and every access in order.
  static void expect_clean() {
    EXPECT_THAT(control().take_violations(), IsEmpty());
    for (const test::sim::Report& report : test::sim::take_reports()) {
      ADD_FAILURE() << report.text;
    }
    EXPECT_EQ(control().live_communicators(), 0);
  }
};

at::Tensor full(std::int64_t count, double value, at::ScalarType dtype = at::kFloat) {
  return at::full({count}, value, test::on_device(dtype));
}

std::unique_ptr<comm::Work> gather(const comm::Link& group, const at::Tensor& dst,
                                   const std::string& name = "h.0") {
  return group.transport->all_gather(dst, full(4, group.rank() + 1.0), {.unit = 0, .name = name});
}

/// What a step does in the end: the host reads what the device has, and the ranks go on. Whoever
/// issues a collective has long returned when it fails on the device.
void go_on(const comm::Link& group, const at::Tensor& tensor) {
  test::to_host(tensor);
  at::Tensor all = full(4 * group.size(), 0);
  gather(group, all, "next step")->wait();
  group.job->barrier({.name = "end of step"});
}

/// The errors of all ranks, empty where there was none.
std::vector<std::string> errors_of(int ranks, const test::RankBody& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  try {
    test::run_ranks("nccl", ranks, [&](const comm::Link& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      texts[rank] = test::error_of([&] { body(group); });
    });
  } catch (const Error& error) {
    for (std::string& text : texts) {
      text = text.empty() ? error.what() : text;
    }
  }
  return texts;
}

TEST_F(Nccl, TheHostWaitsForNothingAndTheStreamThatWaitsSeesTheResult) {
  test::run_ranks("nccl", kRanks, [](const comm::Link& group) {
    const int device = test::device_of_rank().index();
    at::Tensor all = full(4 * kRanks, 0);
    group.job->barrier({.name = "warm"});
    test::sim::take_counts(device);
    at::Tensor sum = full(4, 0);
    for (int round = 0; round < 5; ++round) {
      gather(group, all)->wait();
      group.transport->reduce_scatter(sum, all, {.divisor = 2.0}, {.name = "h.0"})->wait();
    }
    EXPECT_EQ(test::sim::take_counts(device).host_waits, 0);
    EXPECT_EQ(test::to_host(sum).max().item<double>(), (group.rank() + 1) * kRanks / 2.0);
  });
  expect_clean();
}

TEST_F(Nccl, ACollectiveStartsAfterTheCallersStreamAndIsSeenByTheOneThatWaits) {
  test::run_ranks("nccl", 2, [](const comm::Link& group) {
    const comm::detail::DeviceStreams streams(test::device_of_rank());
    const c10::Stream side = streams.take();
    at::Tensor src, all = full(8, 0);
    {
      const c10::StreamGuard on_side(side);
      side.wait(streams.record(
          c10::impl::getDeviceGuardImpl(side.device_type())->getDefaultStream(side.device())));
      src = full(4, 7);
      auto work = group.transport->all_gather(all, src, {.name = "side"});
      work->wait();
      all.add_(1);  // on the stream that waited
    }
    streams.current().wait(streams.record(side));
    EXPECT_EQ(test::to_host(all).sum().item<double>(), 8 * 8);
  });
  expect_clean();
}

TEST_F(Nccl, AWorkThatIsDroppedStillOrdersTheCallersStream) {
  test::run_ranks("nccl", 2, [](const comm::Link& group) {
    at::Tensor all = full(8, 0);
    gather(group, all).reset();
    EXPECT_EQ(test::to_host(all).sum().item<double>(), 4 * 1 + 4 * 2);
  });
  expect_clean();
}

TEST_F(Nccl, GroupsShareOneOrderOnTheDevice) {
  test::run_ranks("nccl", 4, [](const comm::Link& world) {
    const int rank = world.rank();
    const comm::Link row = world.split(rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, "row");
    const comm::Link column = world.split({rank % 2, rank % 2 + 2}, "column");
    const comm::Link alone = world.split({rank}, "alone");
    at::Tensor in_row = full(2, 0), all = full(4, 0), in_column = full(8, 0);
    std::vector<std::unique_ptr<comm::Work>> works;
    const at::Tensor own = full(1, rank);
    works.push_back(row.transport->all_gather(in_row, own, {.name = "row"}));
    // It reads what the one before writes: their kernels run in the order of issue.
    works.push_back(world.transport->all_gather(full(8, 0), in_row, {.name = "world"}));
    works.push_back(column.transport->all_gather(all, in_row, {.name = "column"}));
    works.push_back(world.transport->all_gather(in_column, in_row, {.name = "world"}));
    for (auto& work : works) {
      work->wait();
    }
    const at::Tensor sums = test::to_host(in_column);
    EXPECT_TRUE(at::equal(sums, at::tensor({0.F, 1.F, 0.F, 1.F, 2.F, 3.F, 2.F, 3.F})));
    at::Tensor one = full(1, 0);
    alone.transport->reduce_scatter(one, full(1, 6), {.divisor = 4, .accumulate = true}, {})
        ->wait();
    EXPECT_EQ(test::to_host(one).item<float>(), 1.5F);
  });
  expect_clean();
}

TEST_F(Nccl, TensorsOfTheHostGoOverTheHostsTransport) {
  test::run_ranks("nccl", 2, [](const comm::Link& group) {
    at::Tensor all = at::zeros({2});
    group.transport->all_gather(all, at::full({1}, group.rank() + 1.0), {.name = "host"})->wait();
    EXPECT_EQ(all.sum().item<double>(), 3);
  });
  const std::vector<std::string> calls = control().take_calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "ncclAllGather"), 0);
}

// ---- sums ---------------------------------------------------------------------------------------

TEST_F(Nccl, Fault025_TheSumOfFloat16NeitherOverflowsNorVanishes) {
  test::run_ranks("nccl", 4, [](const comm::Link& group) {
    for (const at::ScalarType dst_type : {at::kFloat, at::kHalf}) {
      at::Tensor large = full(3, 0, dst_type), small = full(3, 0, dst_type);
      group.transport->reduce_scatter(large, full(12, 60000, at::kHalf), {.divisor = 4}, {})
          ->wait();
      group.transport->reduce_scatter(small, full(12, 6e-8, at::kHalf), {}, {})->wait();
      EXPECT_EQ(test::to_host(large).max().item<float>(), 60000.F);
      EXPECT_GT(test::to_host(small).min().item<float>(), 2e-7F);
    }
  });
  expect_clean();
}

TEST_F(Nccl, Fault025_ManyPiecesGiveTheSum) {
  constexpr std::int64_t kCount = 5'000'001;  // more than a piece of float32
  test::run_ranks("nccl", 2, [](const comm::Link& group) {
    const at::Tensor index = at::arange(2 * kCount, at::kFloat).remainder(1000).to(at::kHalf);
    at::Tensor sum = full(kCount, 1);
    group.transport->reduce_scatter(sum, test::to_device(index), {.accumulate = true}, {})->wait();
    const at::Tensor expected =
        1 + 2 * index.narrow(0, group.rank() * kCount, kCount).to(at::kFloat);
    EXPECT_TRUE(at::equal(test::to_host(sum), expected));
  });
  expect_clean();
}

TEST_F(Nccl, Fault026_Float32IsSummedAsFloat32AndBfloat16OnlyWhereItTravels) {
  test::run_ranks("nccl", 4, [](const comm::Link& group) {
    // 256 + 1 + 1 + 1: in bfloat16 the ones vanish.
    const double mine = group.rank() == 0 ? 256 : 1;
    at::Tensor exact = full(1, 0);
    group.transport->reduce_scatter(exact, full(4, mine), {}, {})->wait();
    EXPECT_EQ(test::to_host(exact).item<float>(), 259.F);
    at::Tensor rounded = full(1, 0);
    group.transport->reduce_scatter(rounded, full(4, mine, at::kBFloat16), {}, {})->wait();
    // Three additions, each off by half of a unit in the last place, 2^-8 of the sum, at most.
    EXPECT_NEAR(test::to_host(rounded).item<float>(), 259.F, 3 * 259.F / 256);
  });
  expect_clean();
}

// ---- what goes wrong
// ------------------------------------------------------------------------------

TEST_F(Nccl, AMissingRankEndsTheConnectionAtItsLimit) {
  control().plan({.call = "ncclCommInitRankConfig", .kind = Fault::Kind::kHangsForEver, .rank = 1});
  const auto start = std::chrono::steady_clock::now();
  std::array<std::string, 2> texts;
  run_threads(2, [&](World world) {
    const test::sim::Claim claim(world.rank(), world.rank());
    texts[static_cast<std::size_t>(world.rank())] = test::error_of([&] {
      comm::detail::make_nccl_link(comm::detail::nccl::find_library().library, world.link(),
                                   test::sim::device(world.rank()), milliseconds(700));
    });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(8));
  EXPECT_THAT(texts[1], AllOf(HasSubstr("connecting 2 ranks by NCCL"), HasSubstr("0.7 s")));
  EXPECT_THAT(texts[0], AllOf(HasSubstr("[time-out]"), HasSubstr("connecting 2 ranks by NCCL")));
}

TEST_F(Nccl, EachCallThatFailsIsAnErrorOnAllRanks) {
  for (const char* call : {"ncclAllGather", "ncclReduceScatter", "ncclBroadcast"}) {
    SCOPED_TRACE(call);
    control().plan({.call = call, .rank = 1});
    const auto start = std::chrono::steady_clock::now();
    const auto texts = errors_of(kRanks, [](const comm::Link& group) {
      at::Tensor all = full(4 * kRanks, 0), sum = full(4, 0);
      gather(group, all)->wait();
      group.transport->reduce_scatter(sum, all, {}, {.name = "h.0"})->wait();
      group.transport->broadcast(sum, 0, {.name = "h.0"})->wait();
      go_on(group, sum);
    });
    EXPECT_THAT(texts[1], AllOf(HasSubstr("unhandled system error"), HasSubstr("on rank 1")));
    EXPECT_THAT(texts, Each(HasSubstr("unhandled system error")));
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
    EXPECT_EQ(control().live_communicators(), 0);
  }
}

TEST_F(Nccl, SetUpThatFailsIsAnErrorOnAllRanks) {
  for (const char* call : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(call);
    control().plan({.call = call, .result = 3});
    std::array<std::string, 2> texts;
    run_threads(2, [&](World world) {
      world.link().job->set_timeout(milliseconds(2000));
      const test::sim::Claim claim(world.rank(), world.rank());
      texts[static_cast<std::size_t>(world.rank())] = test::error_of([&] {
        const auto link =
            comm::detail::make_nccl_link(comm::detail::nccl::find_library().library, world.link(),
                                         test::sim::device(world.rank()), milliseconds(1500));
        link.job->barrier({.name = "connected"});
      });
    });
    EXPECT_THAT(texts, Each(HasSubstr("internal error")));
    control().release();
  }
}

TEST_F(Nccl, ACollectiveThatHangsOnTheDeviceEndsAtTheTimeOutOnAllRanks) {
  control().plan({.call = "ncclAllGather", .kind = Fault::Kind::kHangsOnDevice, .rank = 1});
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_of(kRanks, [](const comm::Link& group) {
    group.job->set_timeout(milliseconds(1500));
    at::Tensor all = full(4 * kRanks, 0);
    gather(group, all, "h.3")->wait();
    go_on(group, all);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(8));
  EXPECT_THAT(texts, Each(AnyOf(HasSubstr("h.3"), HasSubstr("has not ended on sim"))));
  EXPECT_EQ(control().live_communicators(), 0);
}

TEST_F(Nccl, ACallThatHangsEndsAtTheTimeOut) {
  control().plan({.call = "ncclReduceScatter", .kind = Fault::Kind::kHangs, .rank = 2});
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_of(kRanks, [](const comm::Link& group) {
    group.job->set_timeout(milliseconds(1500));
    at::Tensor sum = full(4, 0);
    group.transport->reduce_scatter(sum, full(12, 1), {}, {.name = "h.5"})->wait();
    go_on(group, sum);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
  EXPECT_THAT(texts, Each(testing::Not(testing::Eq("no error"))));
  EXPECT_EQ(control().live_communicators(), 0);
}

TEST_F(Nccl, AnErrorThatNcclTellsByItselfEndsAllRanks) {
  control().plan(
      {.call = "ncclAllGather", .kind = Fault::Kind::kFailsLater, .rank = 0, .result = 6});
  const auto texts = errors_of(kRanks, [](const comm::Link& group) {
    group.job->set_timeout(seconds(10));
    at::Tensor all = full(4 * kRanks, 0);
    gather(group, all)->wait();
    std::this_thread::sleep_for(milliseconds(400));
    go_on(group, all);
  });
  EXPECT_THAT(texts, Each(HasSubstr("remote process exited")));
  EXPECT_EQ(control().live_communicators(), 0);
}

TEST_F(Nccl, RanksThatPartOnTheDeviceNameBothCollectives) {
  const auto texts = errors_of(2, [](const comm::Link& group) {
    group.job->set_timeout(seconds(5));
    at::Tensor all = full(8, 0);
    if (group.rank() == 0) {
      gather(group, all, "h.0")->wait();
    } else {
      group.transport->broadcast(all, 0, {.unit = 1, .name = "h.1"})->wait();
    }
    go_on(group, all);
  });
  EXPECT_THAT(texts, Each(testing::Not(testing::Eq("no error"))));
  // The stand-in tells what met; real NCCL would wait until the time-out.
  EXPECT_THAT(control().take_violations(),
              testing::Contains(AllOf(HasSubstr("all-gather of"), HasSubstr("broadcast of"))));
}

TEST_F(Nccl, ARankThatFailsOnTheHostEndsTheOthersOnTheirDevices) {
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_of(kRanks, [](const comm::Link& group) {
    group.job->set_timeout(seconds(30));
    if (group.rank() == 1) {
      group.job->publish_failure("disk full");
      return;
    }
    at::Tensor all = full(4 * kRanks, 0);
    gather(group, all)->wait();
    go_on(group, all);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
  EXPECT_THAT(texts[0], HasSubstr("disk full"));
  EXPECT_THAT(texts[2], HasSubstr("disk full"));
}

TEST_F(Nccl, AfterARecoveryTheRanksConnectAgain) {
  control().plan({.call = "ncclAllGather", .rank = 1, .skip = 1});
  test::run_ranks("nccl", kRanks, [](const comm::Link& group) {
    const auto part = group.split({0, 1, 2}, "all again");
    at::Tensor all = full(4 * kRanks, 0);
    gather(group, all)->wait();
    test::meet();
    const std::string text = test::error_of([&] {
      gather(group, all)->wait();
      group.job->barrier({.name = "end"});
    });
    EXPECT_NE(text, "no error");
    test::meet();
    group.job->recover();
    EXPECT_EQ(group.job->generation(), 1U);
    for (const comm::Link& link : {group, part}) {
      all.zero_();
      gather(link, all)->wait();
      EXPECT_EQ(test::to_host(all).sum().item<double>(), 4.0 * (1 + 2 + 3));
    }
    group.job->barrier({.name = "end"});
  });
  EXPECT_THAT(control().take_violations(), IsEmpty());
  EXPECT_EQ(control().live_communicators(), 0);
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefusedByWhatItIs) {
  std::array<std::string, 2> texts;
  run_threads(2, [&](World world) {
    texts[static_cast<std::size_t>(world.rank())] = test::error_of([&] {
      comm::detail::make_nccl_link(comm::detail::nccl::find_library().library, world.link(),
                                   test::sim::device(3), milliseconds(1500));
    });
  });
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("[invalid argument]"), HasSubstr("ranks 0 and 1"),
                                HasSubstr("sim:3"), HasSubstr("transport staged"))));
}

// ---- the library --------------------------------------------------------------------------------

TEST_F(Nccl, ALibraryThatIsMissingOrTooOldIsSaid) {
  const std::string stand_in = std::getenv("FSDP_NCCL");
  control().set_version(21700);
  EXPECT_THAT(
      comm::detail::nccl::find_library().problem,
      AllOf(HasSubstr("needs NCCL 2.18.0 or newer"), HasSubstr("is 2.17.0"), HasSubstr(stand_in)));
  control().set_version(23007);
  EXPECT_EQ(comm::detail::nccl::find_library().library->version_text(), "2.30.7");
  ::setenv("FSDP_NCCL", "/nowhere/libnccl.so.2", 1);
  EXPECT_THAT(comm::detail::nccl::find_library().problem,
              AllOf(HasSubstr("FSDP_NCCL"), HasSubstr("/nowhere/libnccl.so.2")));
  ::setenv("FSDP_NCCL", "libm.so.6", 1);
  EXPECT_THAT(comm::detail::nccl::find_library().problem, HasSubstr("ncclGetVersion"));
  ::setenv("FSDP_NCCL", stand_in.c_str(), 1);
}

}  // namespace
}  // namespace fsdp
