// SPDX-License-Identifier: Apache-2.0
/// comm::Job, and that it and comm::Transport are two faces of one line, for every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "ranks/transport_harness.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using Case = std::tuple<std::string, int>;

class TwoFaces : public testing::TestWithParam<Case> {
 protected:
  const std::string& transport() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(TwoFaces, AJobExchangesBytesOfAnySize) {
  test::run_ranks(transport(), size(), [&](const comm::Link& group) {
    const auto ranks = comm::gather_values(*group.job, group.rank(), "ranks");
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(ranks[static_cast<std::size_t>(rank)], rank);
    }
    for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{70001}}) {
      const std::vector<double> own(count, group.rank() + 0.5);
      const auto all = comm::gather_values(*group.job, own, "many");
      ASSERT_EQ(all.size(), count * static_cast<std::size_t>(size()));
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<double>(i / count) + 0.5);
      }
    }
    EXPECT_EQ(comm::value_of_first(*group.job, 7 + group.rank(), "first"), 7);
    EXPECT_EQ(group.job->first_failure(), "");
  });
}

TEST_P(TwoFaces, CallsOnBothFacesAreOneLineAndMeetInOrder) {
  test::run_ranks(transport(), size(), [&](const comm::Link& group) {
    at::Tensor all = at::zeros({size()});
    auto gather = group.transport->all_gather(all, at::full({1}, 1.0 + group.rank()), {.unit = 0});
    std::int64_t own = group.rank();
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(size()));
    auto exchange =
        group.job->start_exchange(std::as_bytes(std::span(&own, 1)),
                                  std::as_writable_bytes(std::span(numbers)), {.name = "numbers"});
    auto publish = group.transport->publish({.unit = 1});
    gather->wait();
    exchange->wait();
    publish->wait();
    EXPECT_EQ(all.sum().item<double>(), size() * (size() + 1) / 2.0);
    EXPECT_EQ(numbers.back(), size() - 1);
  });
}

TEST_P(TwoFaces, RanksThatMeetOnDifferentFacesNameEachOtherAtOnce) {
  if (size() == 1) {
    return;  // nobody to meet
  }
  std::mutex mutex;
  std::vector<std::string> texts;
  const auto start = std::chrono::steady_clock::now();
  test::run_ranks(transport(), size(), [&](const comm::Link& group) {
    try {
      if (group.rank() == 0) {
        group.job->barrier({.name = "evaluate"});
      } else {
        group.transport->all_gather(at::zeros({size()}), at::zeros({1}), {0, "h.0"})->wait();
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.text();
      texts.push_back(error.text());
    }
  });
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(size()));
  for (const std::string& text : texts) {
    EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("in \"evaluate\""),
                                     testing::HasSubstr("all-gather #"),
                                     testing::HasSubstr("unit \"h.0\"")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

/// What a transport of a device does: it tells the line, and moves nothing over it.
void announce(comm::Job& job, int unit) {
  job.announce({.operation = comm::Operation::kAllGather,
                .label = {.unit = unit, .name = "h." + std::to_string(unit)},
                .bytes = 64,
                .dtype = "Float"});
}

TEST_P(TwoFaces, WhatRanksAnnounceIsComparedAtTheNextCallOnTheHost) {
  test::run_ranks(transport(), size(), [&](const comm::Link& group) {
    for (const int unit : {0, 1, 2}) {
      announce(*group.job, unit);
    }
    group.job->barrier({.name = "alike"});
    announce(*group.job, group.rank() == 0 ? 3 : 4);
    announce(*group.job, 5);
    const std::string text =
        test::error_of([&] { group.job->barrier({.name = "end of backward"}); });
    if (size() == 1) {
      EXPECT_EQ(text, "no error");
      return;
    }
    EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("[mismatch]"),
                                     testing::HasSubstr("end of backward"),
                                     testing::HasSubstr("different collectives on their devices")));
    if (group.transport->traits().can_recover) {
      test::meet();
      group.job->recover();
      group.job->barrier({.name = "after"});
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int size : {1, 2, 3, 4}) {
    for (const std::string& name : test::transports({.ranks = {size}})) {
      cases.emplace_back(name, size);
    }
  }
  return cases;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const auto& [transport, size] = info.param;
  return (transport == "shm+gloo" ? "two_levels" : transport) + "_" + std::to_string(size);
}

INSTANTIATE_TEST_SUITE_P(Transports, TwoFaces, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace fsdp
