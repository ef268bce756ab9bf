// SPDX-License-Identifier: Apache-2.0
/// Prefetching happens when it should, and on a real transport the bytes come while the previous
/// unit computes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/chain.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
using trace::Event;
using trace::EventKind;

constexpr int kLinks = 5;

/// The events of the third step of a chain on two threads, as rank 0 sees them.
std::vector<Event> events_of_a_step(int prefetch) {
  std::vector<Event> events;
  run_threads(2, [&](World world) {
    Chain model(kLinks, 4);
    bool is_recording = false;
    Options options = test_options(chain_units(), 0, prefetch);
    if (world.rank() == 0) {
      options.debug.observer = [&](const Event& event) {
        if (is_recording) {
          events.push_back(event);
        }
      };
    }
    Sharded sharded = fully_shard(model, world, options);
    for (int step = 0; step < 3; ++step) {
      is_recording = step == 2;
      model->forward(torch::ones({2, 4})).sum().backward();
    }
  });
  return events;
}

std::ptrdiff_t first(const std::vector<Event>& events, EventKind kind, int unit) {
  const auto found = std::ranges::find_if(
      events, [&](const Event& event) { return event.kind == kind && event.unit == unit; });
  return found - events.begin();
}

std::ptrdiff_t last(const std::vector<Event>& events, EventKind kind, int unit) {
  const auto found = std::find_if(events.rbegin(), events.rend(), [&](const Event& event) {
    return event.kind == kind && event.unit == unit;
  });
  return events.rend() - found - 1;
}

class Prefetch : public testing::TestWithParam<int> {};

TEST_P(Prefetch, Fault092_DepthDecidesHowFarAheadGathersStart) {
  const int prefetch = GetParam();
  const std::vector<Event> events = events_of_a_step(prefetch);
  // Units in forward order are 0 (the root), 1..kLinks. While unit k is touched for the first time
  // in forward, the gather of unit k + depth has started and that of k + depth + 1 has not.
  for (int unit = 1; unit <= kLinks; ++unit) {
    const std::ptrdiff_t touched = first(events, EventKind::kGatherWaitEnd, unit);
    for (int ahead = 1; unit + ahead <= kLinks; ++ahead) {
      const std::ptrdiff_t started = first(events, EventKind::kGatherStart, unit + ahead);
      if (ahead <= prefetch) {
        EXPECT_LT(started, touched) << "unit " << unit << " ahead " << ahead;
      } else {
        EXPECT_GT(started, touched) << "unit " << unit << " ahead " << ahead;
      }
    }
  }
  // Backward goes the other way round. The last `prefetch` links stay for it; each other one is
  // gathered again while the link that many places later computes.
  for (int unit = kLinks; unit >= 1; --unit) {
    const std::ptrdiff_t gathers = std::ranges::count_if(events, [&](const Event& event) {
      return event.kind == EventKind::kGatherStart && event.unit == unit;
    });
    const int computing = unit + prefetch;
    EXPECT_EQ(gathers, computing > kLinks ? 1 : 2) << "unit " << unit;
    if (computing <= kLinks) {
      const std::ptrdiff_t started = last(events, EventKind::kGatherStart, unit);
      EXPECT_LT(started, last(events, EventKind::kFree, computing)) << "unit " << unit;
      if (computing < kLinks) {
        EXPECT_GT(started, last(events, EventKind::kFree, computing + 1)) << "unit " << unit;
      }
    }
  }
}

TEST_P(Prefetch, Fault091_LiveUnitsNeverExceedTheDepthPlusOne) {
  const int prefetch = GetParam();
  int live = 0;
  int peak = 0;
  for (const Event& event : events_of_a_step(prefetch)) {
    live += event.kind == EventKind::kGatherStart ? 1 : 0;
    live -= event.kind == EventKind::kFree ? 1 : 0;
    peak = std::max(peak, live);
  }
  EXPECT_EQ(live, 0);
  EXPECT_EQ(peak, 1 + prefetch);
}

INSTANTIATE_TEST_SUITE_P(Depths, Prefetch, testing::Values(0, 1, 2));

TEST(GlooOverlap, BytesOfTheNextUnitArriveBeforeItsWaitBegins) {
  for (const auto& result : run_processes(2, "overlap", [](int rank) {
         const World world = init({.transport = "gloo"});
         const std::int64_t width = 256;
         Chain model(kLinks, width);
         int prefetched = 0;
         int arrived = 0;
         bool is_forward = false;
         Options options = test_options(chain_units(), 0, 1);
         options.debug.observer = [&](const Event& event) {
           // Freed slots are poisoned with 0xff: where the peer's slice still is, nothing has come.
           if (event.kind == EventKind::kGatherWaitBegin && is_forward && event.unit >= 2) {
             const auto* bytes = static_cast<const unsigned char*>(event.data);
             const std::int64_t half = event.bytes / 2;
             const unsigned char* last = bytes + (rank == 0 ? event.bytes : half) - 64;
             ++prefetched;
             arrived +=
                 std::any_of(last, last + 64, [](unsigned char b) { return b != 0xff; }) ? 1 : 0;
           }
         };
         Sharded sharded = fully_shard(model, world, options);
         const at::Tensor x = torch::ones({1024, width});
         for (int step = 0; step < 8; ++step) {
           is_forward = step >= 1;
           const at::Tensor loss = model->forward(x).sum();
           is_forward = false;
           loss.backward();
         }
         EXPECT_EQ(prefetched, 7 * (kLinks - 1));
         // The rank that is ahead waits for the other, and on a loaded machine the I/O thread waits
         // for a core; but if bytes moved only inside of waits, none would be there before one.
         const at::Tensor total = torch::tensor({arrived, prefetched}, torch::kLong);
         world.transport().all_reduce(total, {.name = "arrivals"});
         EXPECT_GE(4 * total[0].item<std::int64_t>(), total[1].item<std::int64_t>());
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
