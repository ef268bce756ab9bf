// SPDX-License-Identifier: Apache-2.0
/// Threads that play ranks over one mapping, so that the thread sanitizer sees whether the
/// synchronisation points order the plain memory; and processes, where one is killed.
#include "shm/group.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>

#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"

namespace fsdp::shm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kElements = 300;

Clock::time_point soon(std::chrono::milliseconds wait = seconds(20)) { return Clock::now() + wait; }

struct Job {
  explicit Job(int size)
      : ranks(size),
        segment(Segment::create(identity, Group::bytes(size))),
        data(Segment::create(identity, static_cast<std::size_t>(size) * kElements * sizeof(int))) {}
  int* source(int rank) const {
    return reinterpret_cast<int*>(data->data()) + static_cast<std::size_t>(rank) * kElements;
  }
  int ranks;
  Identity identity = make_identity();
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Segment> data;
};

void run(const Job& job, const std::function<void(Group&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Group group(job.segment, job.identity, rank, job.ranks);
      ASSERT_EQ(group.await_all_joined(soon()).kind, WaitEnd::kReady);
      body(group);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

FingerprintBytes fingerprint_of(std::uint64_t value) {
  FingerprintBytes bytes{};
  bytes[0] = static_cast<std::byte>(value);
  return bytes;
}

Ticket post(Group& group, const Source& source, const void* data = nullptr,
            std::size_t inline_bytes = 0) {
  const Ticket ticket = group.next_ticket();
  EXPECT_EQ(group.await_slot(ticket, soon()).kind, WaitEnd::kReady);
  group.post(ticket, fingerprint_of(sequence_of(ticket)), source, data, inline_bytes);
  return ticket;
}

void expect_ready(const WaitEnd& end) { ASSERT_EQ(end.kind, WaitEnd::kReady); }

/// One exchange in which everybody reads everybody's source in place.
void exchange_in_place(Group& group, const Job& job, int round) {
  int* mine = job.source(group.rank());
  for (std::size_t i = 0; i < kElements; ++i) {
    mine[i] = round * 10 + group.rank();
  }
  const Ticket ticket = post(group, {.kind = Source::kInPlace, .owner = group.rank()});
  expect_ready(group.await_posted(ticket, soon()));
  expect_ready(group.begin_reading(ticket));
  for (int rank = 0; rank < group.size(); ++rank) {
    EXPECT_EQ(group.fingerprint(ticket, static_cast<std::size_t>(rank)),
              fingerprint_of(sequence_of(ticket)));
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(job.source(rank)[i], round * 10 + rank);
    }
  }
  group.finish(ticket);
  expect_ready(group.await_done(ticket, soon()));
}

TEST(Group, SourcesInPlaceAreRewrittenOnlyWhenAllHaveRead) {
  for (const int size : {1, 2, 3, 5}) {
    const Job job(size);
    run(job, [&](Group& group) {
      for (int round = 0; round < 300; ++round) {
        exchange_in_place(group, job, round);
      }
    });
  }
}

TEST(Group, InlineDataStayInTheirSlotUntilTheRingComesRound) {
  const Job job(3);
  run(job, [&](Group& group) {
    for (int round = 0; round < 500; ++round) {
      int value = round * 10 + group.rank();
      const Ticket ticket = post(group, {.kind = Source::kInline}, &value, sizeof(value));
      value = -1;
      expect_ready(group.await_posted(ticket, soon()));
      for (int rank = 0; rank < 3; ++rank) {
        int seen = 0;
        std::memcpy(&seen, group.inline_data(ticket, static_cast<std::size_t>(rank)), sizeof(seen));
        ASSERT_EQ(seen, round * 10 + rank);
      }
      group.finish(ticket);
    }
  });
}

TEST(Group, ManyExchangesInFlightEndInAnyOrderThatAllShare) {
  const Job job(2);
  run(job, [&](Group& group) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < kRing; ++i) {
        tickets.push_back(post(group, {}));
      }
      EXPECT_THAT(test::error_of([&] { group.next_ticket(); }),
                  testing::HasSubstr("64 are under way"));
      for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
        expect_ready(group.await_posted(*ticket, soon()));
        group.finish(*ticket);
      }
    }
  });
}

TEST(Group, StagedPiecesArriveInOrderAndAreNotOverwritten) {
  const Job job(3);
  run(job, [&](Group& group) {
    for (int round = 0; round < 5; ++round) {
      const Ticket ticket = post(group, {.kind = Source::kStaged});
      expect_ready(group.await_posted(ticket, soon()));
      expect_ready(group.begin_reading(ticket));
      for (std::uint32_t piece = 0; piece < 40; ++piece) {
        if (piece >= 2) {
          expect_ready(group.await_consumed(ticket, piece - 1, soon()));
        }
        auto* own = reinterpret_cast<std::uint32_t*>(group.own_half(piece));
        own[0] = own[1000] = piece * 8 + static_cast<std::uint32_t>(group.rank());
        group.show_staged(ticket, piece + 1);
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
          if (static_cast<int>(rank) != group.rank()) {
            expect_ready(group.await_staged(ticket, rank, piece + 1, soon()));
            const auto* half = reinterpret_cast<const std::uint32_t*>(group.half_of(rank, piece));
            ASSERT_EQ(half[0], piece * 8 + rank);
            ASSERT_EQ(half[1000], piece * 8 + rank);
          }
        }
        group.show_consumed(ticket, piece + 1);
      }
      group.finish(ticket);
      expect_ready(group.await_done(ticket, soon()));
    }
  });
}

TEST(Group, WhoDropsWaitsForReadersAndEndsTheOthers) {
  const Job job(2);
  run(job, [&](Group& group) {
    for (int round = 0; round < 100; ++round) {
      int* mine = job.source(group.rank());
      mine[0] = round;
      const Ticket ticket = post(group, {.kind = Source::kInPlace, .owner = group.rank()});
      if (group.rank() == 0) {
        group.drop(ticket, soon());
        mine[0] = -1;  // a race for the sanitizer if rank 1 reads
        group.publish_failure("dropped");
      } else {
        expect_ready(group.await_posted(ticket, soon()));
        if (group.begin_reading(ticket).kind == WaitEnd::kReady) {
          EXPECT_EQ(job.source(0)[0], round);
          group.finish(ticket);
          EXPECT_NE(group.await_done(ticket, soon()).kind, WaitEnd::kReady);
        }
        group.drop(ticket, soon());
      }
      expect_ready(group.recover(soon()));
      EXPECT_EQ(group.generation(), static_cast<std::uint64_t>(round) + 1);
      exchange_in_place(group, job, round);
    }
  });
}

TEST(Group, TheFirstFailureIsTheOneThatAllSee) {
  const Job job(3);
  std::array<std::string, 3> texts;
  run(job, [&](Group& group) {
    const auto me = static_cast<std::size_t>(group.rank());
    EXPECT_FALSE(group.first_failure().has_value());
    const Ticket ticket = post(group, {});
    expect_ready(group.await_posted(ticket, soon()));
    group.finish(ticket);
    if (group.rank() != 2) {
      group.publish_failure(std::string(300, static_cast<char>('a' + group.rank())));
    } else {
      const Ticket next = post(group, {});
      EXPECT_EQ(group.await_posted(next, soon()).kind, WaitEnd::kFailed);
    }
    const auto failure = group.first_failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->text, std::string(300, static_cast<char>('a' + failure->rank)));
    texts[me] = failure->text;
    expect_ready(group.recover(soon()));
    EXPECT_FALSE(group.first_failure().has_value());
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST(Group, AWaitSleepsAndEndsAtItsDeadline) {
  const Job job(2);
  run(job, [&](Group& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(800));
      return;
    }
    timespec before{}, after{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    const Ticket ticket = post(group, {});
    EXPECT_EQ(group.await_posted(ticket, soon(milliseconds(500))).kind, WaitEnd::kTimeout);
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    EXPECT_EQ(group.list_missing(ticket), "1");
    const double seconds_used = static_cast<double>(after.tv_sec - before.tv_sec) +
                                static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    EXPECT_LT(seconds_used, 0.2) << "no busy core at idle";
  });
}

TEST(Group, ARankThatLeavesEndsWaitsForIt) {
  const Job job(2);
  run(job, [&](Group& group) {
    const Ticket ticket = post(group, {});
    expect_ready(group.await_posted(ticket, soon()));
    group.finish(ticket);
    if (group.rank() == 0) {
      const WaitEnd end = group.await_posted(post(group, {}), soon());
      EXPECT_EQ(end.kind, WaitEnd::kLeft);
      EXPECT_EQ(end.rank, 1);
    }
  });
}

TEST(Group, AnotherNumberOfRanksIsRefused) {
  const Job job(2);
  EXPECT_THAT(test::error_of([&] { Group(job.segment, job.identity, 1, 3); }),
              testing::HasSubstr("WORLD_SIZE"));
}

TEST(Group, AKilledProcessEndsWaitsForItAndLeavesNoLock) {
  for (const int delay_us : {0, 300, 2000, 20000}) {
    const Job job(2);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto mapping = Segment::open(
          job.identity, {.process = ::getppid(), .descriptor = job.segment->address().descriptor});
      Group group(mapping, job.identity, 1, 2);
      group.await_all_joined(soon());
      for (;;) {
        const Ticket ticket = post(group, {});
        group.await_posted(ticket, soon());
        group.finish(ticket);
      }
    }
    Group group(job.segment, job.identity, 0, 2);
    expect_ready(group.await_all_joined(soon()));
    const auto start = Clock::now();
    bool is_killed = false;
    WaitEnd end;
    while (end.kind == WaitEnd::kReady) {
      if (!is_killed && Clock::now() - start >= std::chrono::microseconds(delay_us)) {
        ::kill(child, SIGKILL);
        is_killed = true;
      }
      const Ticket ticket = post(group, {});
      end = group.await_posted(ticket, soon());
      group.finish(ticket);
    }
    EXPECT_EQ(end.kind, WaitEnd::kLost);
    EXPECT_EQ(group.recover(soon()).kind, WaitEnd::kLost);
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace fsdp::shm
