// SPDX-License-Identifier: Apache-2.0
/// The contract of comm::Job and comm::Transport, for every transport, crossed with world sizes,
/// counts and dtypes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"
#include "ranks/transport_harness.hpp"

namespace fsdp {
namespace {

using comm::Finish;
using comm::Label;

constexpr std::int64_t kCounts[] = {0, 1, 13, 4099, 70001};
constexpr at::ScalarType kReducible[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                         at::kHalf,  at::kInt,    at::kLong};
constexpr at::ScalarType kMovable[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                       at::kInt,   at::kLong,   at::kBool,     at::kComplexFloat};

/// Values that differ between ranks, rounds and elements and are no round numbers in binary.
at::Tensor values(int rank, std::int64_t count, at::ScalarType dtype, int round = 0) {
  const at::Tensor index = at::arange(count, at::kDouble);
  const at::Tensor wave = at::sin(index * 0.37 + rank * 1.7 + round * 0.9) * (3.0 + rank);
  if (dtype == at::kBool) {
    return wave.gt(0);
  }
  return (c10::isIntegralType(dtype, false) ? wave * 1000.0 : wave).to(dtype);
}

/// The same where this rank computes.
at::Tensor source(int rank, std::int64_t count, at::ScalarType dtype, int round = 0) {
  return test::to_device(values(rank, count, dtype, round));
}

at::Tensor zeros(std::int64_t count, at::ScalarType dtype = at::kFloat) {
  return at::zeros({count}, test::on_device(dtype));
}

bool same(const at::Tensor& left, const at::Tensor& right) {
  return at::equal(test::to_host(left), test::to_host(right));
}

at::Tensor slice_of(const at::Tensor& whole, int rank, std::int64_t count) {
  return whole.narrow(0, rank * count, count);
}

/// The sources of all ranks and their sum in rank order, computed once for all of them.
struct Sources {
  std::vector<at::Tensor> of_rank;
  at::Tensor sum;  // bfloat16 and float16 in float32
};

Sources make_sources(int size, std::int64_t count, at::ScalarType dtype) {
  const bool is_narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  Sources sources;
  for (int r = 0; r < size; ++r) {
    sources.of_rank.push_back(values(r, count * size, dtype));
    const at::Tensor source = sources.of_rank.back().to(is_narrow ? at::kFloat : dtype);
    sources.sum = r == 0 ? source.clone() : sources.sum + source;
  }
  return sources;
}

/// What reduce-scatter promises for a slice, computed operation by operation.
at::Tensor expected_reduction(const at::Tensor& before, at::Tensor sum, at::ScalarType dtype,
                              const Finish& finish) {
  const at::ScalarType wide = sum.scalar_type();
  if (c10::isIntegralType(dtype, false)) {
    sum = at::div(sum, static_cast<std::int64_t>(finish.divisor), "trunc").to(wide);
  } else {
    sum = sum / at::full({}, finish.divisor, wide);
  }
  return (finish.accumulate ? before.to(wide) + sum : sum).to(dtype);
}

using Case = std::tuple<std::string, int>;

class TransportContract : public testing::TestWithParam<Case> {
 protected:
  const std::string& transport() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void run(const test::RankBody& body) { test::run_ranks(transport(), size(), body); }
};

TEST_P(TransportContract, TellsRankSizeAndTransport) {
  std::atomic<int> ranks{0};
  run([&](const comm::Link& group) {
    EXPECT_EQ(group.size(), size());
    EXPECT_EQ(group.transport->traits().name, transport());
    ranks += 1 << group.rank();
  });
  EXPECT_EQ(ranks, (1 << size()) - 1);
}

TEST_P(TransportContract, AllGatherPlacesEveryRanksSlice) {
  run([&](const comm::Link& group) {
    for (const at::ScalarType dtype : kMovable) {
      for (const std::int64_t count : kCounts) {
        for (const bool in_place : {false, true}) {
          at::Tensor dst = zeros(count * size(), dtype);
          const at::Tensor mine = source(group.rank(), count, dtype);
          at::Tensor src = in_place ? slice_of(dst, group.rank(), count) : mine.clone();
          src.copy_(mine);
          group.transport->all_gather(dst, src, {.unit = 3, .name = "gather"})->wait();
          for (int r = 0; r < size(); ++r) {
            ASSERT_TRUE(same(slice_of(dst, r, count), values(r, count, dtype)))
                << dtype << " count " << count << " in place " << in_place << " slice " << r;
          }
          ASSERT_TRUE(same(src, mine));
        }
      }
    }
  });
}

TEST_P(TransportContract, ReduceScatterSumsInRankOrder) {
  std::map<std::pair<at::ScalarType, std::int64_t>, Sources> all;
  for (const at::ScalarType dtype : kReducible) {
    for (const std::int64_t count : kCounts) {
      all[{dtype, count}] = make_sources(size(), count, dtype);
    }
  }
  const auto untouched = values(0, 70001 * size(), at::kFloat);
  run([&](const comm::Link& group) {
    const Finish finishes[] = {
        {}, {.divisor = 3.0}, {.accumulate = true}, {.divisor = 7.0, .accumulate = true}};
    for (const auto& [key, sources] : all) {
      const auto [dtype, count] = key;
      const at::Tensor before = values(group.rank(), count, dtype, 5);
      const at::Tensor sum = slice_of(sources.sum, group.rank(), count);
      for (const Finish& finish : finishes) {
        at::Tensor dst = test::to_device(before).clone();
        const at::Tensor src =
            test::to_device(sources.of_rank[static_cast<std::size_t>(group.rank())]);
        group.transport->reduce_scatter(dst, src, finish, {.unit = 4, .name = "reduce"})->wait();
        dst = test::to_host(dst);
        const at::Tensor expected = expected_reduction(before, sum, dtype, finish);
        const bool exact = group.transport->traits().sums == comm::Sums::kRankOrder ||
                           c10::isIntegralType(dtype, false);
        const double tolerance = dtype == at::kBFloat16 ? 0.1 : dtype == at::kHalf ? 0.02 : 1e-5;
        ASSERT_TRUE(exact ? at::equal(dst, expected)
                          : at::allclose(dst, expected, tolerance, tolerance))
            << dtype << " count " << count << " divisor " << finish.divisor << " accumulate "
            << finish.accumulate;
      }
    }
  });
  ASSERT_TRUE(at::equal(all[{at::kFloat, 70001}].of_rank[0], untouched)) << "a source was changed";
}

TEST_P(TransportContract, BroadcastCopiesTheRootsBuffer) {
  run([&](const comm::Link& group) {
    for (const at::ScalarType dtype : kMovable) {
      for (const std::int64_t count : kCounts) {
        for (const int root : {0, size() - 1}) {
          at::Tensor buffer = source(group.rank(), count, dtype);
          group.transport->broadcast(buffer, root, {.name = "broadcast"})->wait();
          ASSERT_TRUE(same(buffer, values(root, count, dtype))) << dtype << " " << count;
        }
      }
    }
  });
}

TEST_P(TransportContract, AgreeIsABarrier) {
  std::atomic<int> arrived{0};
  run([&](const comm::Link& group) {
    for (int round = 1; round <= 3; ++round) {
      ++arrived;
      group.job->barrier({.name = "barrier"});
      EXPECT_GE(arrived, round * size());
      group.job->barrier({.name = "barrier"});
    }
  });
}

TEST_P(TransportContract, AllReduceGivesEveryRankTheSameSum) {
  run([&](const comm::Link& group) {
    for (const at::ScalarType dtype : kReducible) {
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{13}}) {
        at::Tensor buffer = source(group.rank(), count, dtype);
        group.transport->all_reduce(buffer, {.name = "norm"});
        const bool is_narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
        at::Tensor sum = values(0, count, dtype).to(is_narrow ? at::kFloat : dtype);
        for (int r = 1; r < size(); ++r) {
          sum = sum + values(r, count, dtype);
        }
        ASSERT_TRUE(same(buffer, sum.to(dtype))) << dtype << " " << count;
      }
    }
  });
}

TEST_P(TransportContract, ManyCollectivesInFlightKeepTheirBuffersApart) {
  constexpr int kRounds = 8;
  constexpr std::int64_t kCount = 5001;
  run([&](const comm::Link& group) {
    group.transport->reserve_staging(kCount * size() * 4, 2);
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<at::Tensor> gathered, reduced, sources;
      std::vector<std::unique_ptr<comm::Work>> works;
      for (int round = 0; round < kRounds; ++round) {
        gathered.push_back(zeros(kCount * size()));
        reduced.push_back(zeros(kCount, at::kDouble));
        sources.push_back(source(group.rank(), kCount, at::kFloat, round));
        works.push_back(
            group.transport->all_gather(gathered.back(), sources.back(), {.unit = round}));
        sources.push_back(source(group.rank(), kCount * size(), at::kDouble, round));
        works.push_back(
            group.transport->reduce_scatter(reduced.back(), sources.back(), {}, {.unit = round}));
      }
      for (auto& work : works) {
        work->wait();
        work.reset();
      }
      for (int round = 0; round < kRounds; ++round) {
        at::Tensor sum = at::zeros({kCount}, at::kDouble);
        for (int r = 0; r < size(); ++r) {
          const auto at = static_cast<std::size_t>(round);
          ASSERT_TRUE(
              same(slice_of(gathered[at], r, kCount), values(r, kCount, at::kFloat, round)));
          sum += slice_of(values(r, kCount * size(), at::kDouble, round), group.rank(), kCount);
        }
        ASSERT_TRUE(at::allclose(test::to_host(reduced[static_cast<std::size_t>(round)]), sum,
                                 1e-12, 1e-12));
      }
    }
  });
}

TEST_P(TransportContract, SharedMemoryIsZeroAndSeenByAll) {
  run([&](const comm::Link& group) {
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4099}}) {
      const at::Tensor bytes =
          group.transport->shared_memory(count * size() * 4, {.name = "weights"});
      if (transport() == "c10d") {
        EXPECT_FALSE(bytes.defined());
        continue;
      }
      ASSERT_EQ(bytes.numel(), count * size() * 4);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data_ptr()) % 8, 0U);
      ASSERT_TRUE(bytes.eq(0).all().item<bool>());
      group.job->barrier({});
      const at::Tensor weights = bytes.view(at::kFloat);
      slice_of(weights, group.rank(), count).copy_(values(group.rank(), count, at::kFloat));
      group.job->barrier({});
      for (int r = 0; r < size(); ++r) {
        ASSERT_TRUE(at::equal(slice_of(weights, r, count), values(r, count, at::kFloat)));
      }
    }
  });
}

TEST_P(TransportContract, SourcesInTheTransportsMemoryGiveTheSame) {
  constexpr std::int64_t kCount = 70001;
  run([&](const comm::Link& group) {
    const Label label{.unit = 1, .name = "in place"};
    const auto rank = group.rank();
    for (const int private_rank : {-1, 0}) {  // rank 0's source in private memory: it is staged
      const at::Tensor bytes = rank == private_rank ? at::empty({kCount * size() * 8}, at::kByte)
                                                    : group.transport->buffer(kCount * size() * 8);
      ASSERT_EQ(bytes.numel(), kCount * size() * 8);
      const at::Tensor source = bytes.view(at::kDouble);
      for (int round = 0; round < 5; ++round) {
        // Written anew as soon as wait() allows it.
        source.copy_(values(rank, kCount * size(), at::kDouble, round));
        at::Tensor sum = at::zeros({kCount}, at::kDouble);
        group.transport->reduce_scatter(sum, source, {}, label)->wait();
        at::Tensor expected = at::zeros({kCount}, at::kDouble);
        for (int r = 0; r < size(); ++r) {
          expected += slice_of(values(r, kCount * size(), at::kDouble, round), rank, kCount);
        }
        ASSERT_TRUE(at::allclose(sum, expected, 1e-12, 1e-12)) << "round " << round;
        const at::Tensor mine = slice_of(source, rank, kCount);
        mine.fill_(rank + round);
        at::Tensor all = at::zeros({kCount * size()}, at::kDouble);
        group.transport->all_gather(all, mine, label)->wait();
        mine.fill_(-1);
        at::Tensor root = slice_of(source, size() - 1, kCount).fill_(rank);
        group.transport->broadcast(root, size() - 1, label)->wait();
        ASSERT_TRUE(root.eq(size() - 1).all().item<bool>());
        for (int r = 0; r < size(); ++r) {
          ASSERT_TRUE(slice_of(all, r, kCount).eq(r + round).all().item<bool>());
        }
      }
    }
  });
}

TEST_P(TransportContract, BuffersCanBeMadeAndFreedForEver) {
  run([&](const comm::Link& group) {
    for (int round = 0; round < 200; ++round) {
      const at::Tensor source =
          group.transport->buffer(8192 * size()).view(at::kFloat).fill_(round);
      at::Tensor sum = at::zeros({2048});
      group.transport->reduce_scatter(sum, source, {}, {.name = "short-lived"})->wait();
      ASSERT_TRUE(sum.eq(round * size()).all().item<bool>()) << round;
    }
  });
}

TEST_P(TransportContract, InvalidArgumentsLeaveTheRanksInStep) {
  run([&](const comm::Link& group) {
    const Label label{.name = "embedding"};
    if (group.rank() == 0) {
      try {
        group.transport->all_gather(zeros(7 * size() + 1), zeros(7), label);
        ADD_FAILURE() << "a size that fits no slice was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.text(), testing::HasSubstr("embedding"));
      }
      EXPECT_THROW(group.transport->all_gather(zeros(size(), at::kInt), zeros(1), label), Error);
      EXPECT_THROW(group.transport->all_gather(zeros(size()), at::Tensor(), label), Error);
      EXPECT_THROW(group.transport->broadcast(zeros(1), size(), label), Error);
      EXPECT_THROW(group.transport->broadcast(zeros(6).view({2, 3}).t(), 0, label), Error);
      EXPECT_THROW(
          group.transport->reduce_scatter(zeros(1, at::kBool), zeros(size(), at::kBool), {}, label),
          Error);
      EXPECT_THROW(group.transport->reduce_scatter(zeros(1), zeros(size()), {.divisor = 0}, label),
                   Error);
    }
    group.job->barrier(label);
  });
}

TEST_P(TransportContract, TensorsOfAnotherDeviceAreRefusedBeforeAnythingIsSent) {
  run([&](const comm::Link& group) {
    const Label label{.name = "embedding"};
    const auto on_meta = [](std::int64_t count) { return at::empty({count}, at::kMeta); };
    const std::vector<std::function<void()>> calls{
        [&] { group.transport->all_gather(on_meta(size()), zeros(1), label); },
        [&] { group.transport->all_gather(zeros(size()), on_meta(1), label); },
        [&] { group.transport->reduce_scatter(on_meta(1), zeros(size()), {}, label); },
        [&] { group.transport->reduce_scatter(zeros(1), on_meta(size()), {}, label); },
        [&] { group.transport->broadcast(on_meta(1), 0, label); },
        [&] { group.transport->start_all_reduce(on_meta(1), 1, label); },
        [&] { group.transport->start_all_reduce(on_meta(70001), 1, label); },
    };
    for (std::size_t i = 0; i < calls.size() && group.rank() == 0; ++i) {
      try {
        calls[i]();
        ADD_FAILURE() << "call " << i << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.text();
        EXPECT_THAT(
            error.text(),
            testing::AllOf(testing::HasSubstr("embedding"), testing::HasSubstr("on meta"),
                           testing::HasSubstr(transport() + " "),
                           testing::AnyOf(testing::HasSubstr("takes tensors of the CPU"),
                                          testing::HasSubstr("takes tensors of one device"))));
      }
    }
    group.job->barrier(label);
  });
}

TEST_P(TransportContract, TraitsAreThoseOfTheTable) {
  const auto infos = comm::transports();
  const auto row = std::ranges::find_if(
      infos, [&](const comm::TransportInfo& info) { return info.traits.name == transport(); });
  ASSERT_NE(row, infos.end());
  run([&](const comm::Link& group) {
    const comm::Traits& traits = group.transport->traits();
    EXPECT_EQ(traits.name, row->traits.name);
    EXPECT_EQ(traits.waits, row->traits.waits);
    EXPECT_EQ(traits.sums, row->traits.sums);
    EXPECT_EQ(traits.shares_memory, row->traits.shares_memory);
    EXPECT_EQ(traits.can_split, row->traits.can_split);
    EXPECT_EQ(traits.can_recover, row->traits.can_recover);
    EXPECT_FALSE(group.transport->refuses(at::kCPU));
    EXPECT_EQ(group.transport->rank(), group.rank());
    EXPECT_EQ(group.transport->size(), group.size());
    group.job->barrier({.name = "end"});
  });
}

/// A promise is kept; what is not promised is refused on all ranks, which stay in step.
void expect(bool is_promised, const std::function<void()>& call) {
  try {
    call();
    EXPECT_TRUE(is_promised);
  } catch (const Error& error) {
    EXPECT_FALSE(is_promised) << error.text();
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST_P(TransportContract, GroupsRecoveryAndMemoryAreAsTheTraitsSay) {
  run([&](const comm::Link& group) {
    const comm::Traits& traits = group.transport->traits();
    expect(traits.can_split, [&] {
      const comm::Link alone = group.split({group.rank()}, "alone");
      EXPECT_EQ(alone.size(), 1);
      alone.job->barrier({.name = "alone"});
    });
    test::meet();
    expect(traits.can_recover, [&] {
      group.job->recover();
      EXPECT_EQ(group.job->generation(), 1U);
    });
    EXPECT_TRUE(group.transport->shared_memory(64, {.name = "weights"}).defined() ||
                !traits.shares_memory);
    group.job->barrier({.name = "end"});
  });
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const std::string& name : test::transports({.ranks = {size}})) {
      cases.emplace_back(name, size);
    }
  }
  for (const std::string& name : test::transports({.ranks = {6}})) {
    if (name == "shm+gloo") {  // three ranks per host
      cases.emplace_back(name, 6);
    }
  }
  return cases;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const std::string& transport = std::get<0>(info.param);
  return (transport == "shm+gloo" ? "two_levels" : transport) + "_" +
         std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportContract, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace fsdp
