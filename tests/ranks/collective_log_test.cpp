// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "comm/failure/collective_log.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/comm/transport.hpp"
#include "fsdp/comm/world.hpp"
#include "ranks/transport_harness.hpp"
#include "support/processes.hpp"

namespace fsdp {
namespace {

using comm::detail::CollectiveLog;
using comm::detail::Fingerprint;
using comm::detail::WaitRecord;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Fingerprint gather(std::uint64_t sequence) {
  return comm::detail::make_fingerprint(
      {.operation = 1, .unit = 3, .name = "h.3", .bytes = 4096, .dtype = "Float"}, sequence, 1);
}

TEST(CollectiveLog, BeforeTheFirstCollectiveSaysSo) {
  EXPECT_EQ(CollectiveLog::create("gloo", 1, 4)->describe(),
            "rank 1 of 4 (gloo), now: in no collective; no collective so far");
}

TEST(CollectiveLog, TellsWhatIsWaitedForInFlightAndOver) {
  const auto log = CollectiveLog::create("gloo", 1, 4);
  log->start(gather(1));
  WaitRecord(*log, gather(1)).complete();
  log->start(gather(2));
  {
    WaitRecord failing(*log, gather(2));
  }
  log->start(gather(3));
  log->start(gather(4));
  const WaitRecord record(*log, gather(4));
  const std::string text = log->describe();
  EXPECT_THAT(text, HasSubstr("now: all-gather #4 of unit \"h.3\" (4096 bytes of Float a slice): "
                              "waiting for "));
  EXPECT_THAT(text, ContainsRegex("#4 .*waiting for .*\n.*#3 .*in flight, started .* ago\n"
                                  ".*#2 .*failed .* ago, .*\n.*#1 .*complete .* ago"));
}

TEST(CollectiveLog, ShowsTheLastTenAndRemembersWhatIsWaitedForLonger) {
  const auto log = CollectiveLog::create("gloo", 0, 2);
  log->start(gather(1));
  log->begin_wait(gather(1));
  for (std::uint64_t i = 2; i <= 40; ++i) {
    log->start(gather(i));
    WaitRecord(*log, gather(i)).complete();
  }
  EXPECT_THAT(log->describe(), AllOf(HasSubstr("now: all-gather #1 of"), HasSubstr("#40 "),
                                     HasSubstr("#31 "), Not(HasSubstr("#30 "))));
}

class EveryCollective : public testing::TestWithParam<std::string> {};

TEST_P(EveryCollective, IsLoggedWithItsNumberAtDebugLevel) {
  const base::LogLevel before = base::log_level();
  base::set_log_level(base::LogLevel::kDebug);
  testing::internal::CaptureStderr();
  test::run_ranks(GetParam(), 2, [](const comm::Link& group) {
    at::Tensor dst = at::zeros({8});
    group.transport->all_gather(dst, at::zeros({4}), {.unit = 5, .name = "h.5"})->wait();
    group.transport->reduce_scatter(at::zeros({4}), dst, {}, {.unit = 5, .name = "h.5"})->wait();
  });
  const std::string text = testing::internal::GetCapturedStderr();
  base::set_log_level(before);
  EXPECT_THAT(text, ContainsRegex("all-gather #[0-9] of unit \"h.5\" .16 bytes of Float a slice. "
                                  "starts"));
  EXPECT_THAT(text, ContainsRegex("reduce-scatter #[0-9] of unit \"h.5\" is complete: under way "));
}

INSTANTIATE_TEST_SUITE_P(Transports, EveryCollective,
                         testing::ValuesIn(test::transports({.ranks = {2}})),
                         [](const auto& tested) { return tested.param; });

TEST(StateSignal, ShowsWhatARankThatWaitsIsDoing) {
  const auto results = test::run_processes(2, "signal", [](int) {
    const World world = init();
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
    } else {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        ::kill(::getpid(), SIGUSR1);
      }).detach();
    }
    at::Tensor dst = at::zeros({8});
    world.transport().all_gather(dst, at::zeros({4}), {.unit = 5, .name = "h.5"})->wait();
    world.barrier();
  });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  EXPECT_THAT(results[0].output,
              AllOf(HasSubstr("rank 0 of 2 (shm), now: all-gather #2 of unit \"h.5\""),
                    HasSubstr("last collectives, newest first")));
}

}  // namespace
}  // namespace fsdp
