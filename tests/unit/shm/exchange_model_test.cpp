// SPDX-License-Identifier: Apache-2.0
/// The rules of src/shm/phase.hpp, step by step, in every interleaving of two and
/// three ranks: nobody reads what its owner may write, and nobody waits for ever. Each rule is
/// switched off once to show that the model needs it. The predicates are those of the real code;
/// memory orders are not modelled (group_test runs under the thread sanitizer for that).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "shm/phase.hpp"

namespace fsdp::shm {
namespace {

struct Scenario {
  std::size_t ranks = 2;
  std::size_t ring = 1;
  std::uint8_t exchanges = 3;
  bool may_drop = false;     ///< rank 0 may drop one, then all recover and run one more
  bool may_give_up = false;  ///< rank 0 may time out in recover() once
  // The rules, each of which can be broken.
  bool waits_for_done = true;
  bool waits_for_slot = true;
  bool looks_for_drop = true;
  bool drop_waits_for_readers = true;
  bool all_recover = true;
};

enum Step : std::uint8_t {
  kSlot,
  kWrite,
  kWritten,
  kFill,
  kFilled,
  kPost,
  kAwaitPosted,
  kCompare,
  kSetReading,
  kLookForDrop,
  kRead,
  kSetDone,
  kAwaitDone,
  kDrop,
  kDropWait,
  kDropped,
  kCome,
  kMeet,
  kRetract,
  kRetracted,
  kAdvance,
  kEnd
};

constexpr std::uint8_t kGarbage = 255;
constexpr std::size_t kMostStates = 2'000'000;

struct Rank {
  Step step = kSlot;
  std::uint8_t peer = 0;
  std::uint8_t generation = 0;
  std::uint8_t sequence = 1;
  std::uint8_t source = kGarbage;
  std::uint8_t here = 0;
  std::uint8_t has_dropped = 0;
  std::uint8_t has_given_up = 0;
  std::array<std::uint8_t, 2> content{};
  std::array<std::uint64_t, 2> state{};
};

struct State {
  std::uint64_t generation = 0;
  std::uint64_t failed = 0;  ///< generation + 1 of the first failure
  std::array<Rank, 3> rank{};
};

/// What a source or slot holds once it is written for a ticket.
std::uint8_t mark(const Rank& rank) {
  return static_cast<std::uint8_t>(rank.generation * 16 + rank.sequence);
}

class Model {
 public:
  explicit Model(const Scenario& scenario) : scenario_(scenario) { explore(); }
  const std::string& violation() const { return violation_; }
  std::size_t states() const { return seen_.size(); }

 private:
  void explore() {
    pending_.push_back({});
    while (!pending_.empty() && violation_.empty()) {
      if (seen_.size() > kMostStates) {
        violation_ = "the exploration does not end";
        return;
      }
      const State state = pending_.back();
      pending_.pop_back();
      bool moved = false;
      bool ended = true;
      for (std::size_t i = 0; i < scenario_.ranks; ++i) {
        const std::size_t before = moves_;
        advance(state, i);
        moved = moved || moves_ > before;
        ended = ended && state.rank[i].step == kEnd;
      }
      if (!moved && !ended) {
        violation_ = "deadlock:";
        for (std::size_t i = 0; i < scenario_.ranks; ++i) {
          violation_ +=
              " rank " + std::to_string(i) + " in step " + std::to_string(state.rank[i].step);
        }
      }
    }
  }

  void push(const State& state) {
    ++moves_;
    std::string bytes(reinterpret_cast<const char*>(&state), sizeof(state));
    if (seen_.insert(std::hash<std::string>{}(bytes)).second) {
      pending_.push_back(state);
    }
  }

  /// `rank` goes on to `step` and looks at its peers from the first on.
  void go(State state, std::size_t i, Step step) {
    state.rank[i].step = step;
    state.rank[i].peer = 0;
    push(state);
  }

  /// The next peer, or `step` after the last.
  void next_peer(State state, std::size_t i, Step step) {
    Rank& me = state.rank[i];
    if (++me.peer == scenario_.ranks) {
      go(state, i, step);
    } else {
      push(state);
    }
  }

  void set_phase(State state, std::size_t i, Phase phase, Step step) {
    Rank& me = state.rank[i];
    me.state[slot_of(me)] = make_state(ticket_of(me), phase);
    go(state, i, step);
  }

  static Ticket ticket_of(const Rank& rank) { return make_ticket(rank.generation, rank.sequence); }
  std::size_t slot_of(const Rank& rank) const { return rank.sequence % scenario_.ring; }
  static bool has_failed(const State& state, const Rank& rank) {
    return state.failed == rank.generation + 1U || state.generation != rank.generation;
  }

  void fail_unless(bool holds, const char* what, std::size_t i) {
    if (!holds) {
      violation_ = std::string(what) + " on rank " + std::to_string(i);
    }
  }

  void finish_exchange(State state, std::size_t i) {
    Rank& me = state.rank[i];
    const bool is_last = me.generation > 0 || me.sequence == scenario_.exchanges;
    if (!is_last) {
      ++me.sequence;
    }
    go(state, i, is_last ? kEnd : kSlot);
  }

  /// All that rank `i` can do in `state`.
  void advance(State state, std::size_t i);
  void exchange(State state, std::size_t i);
  void recover(State state, std::size_t i);

  Scenario scenario_;
  std::string violation_;
  std::vector<State> pending_;
  std::unordered_set<std::uint64_t> seen_;
  std::size_t moves_ = 0;
};

void Model::advance(State state, std::size_t i) {
  const Step step = state.rank[i].step;
  if (step == kEnd) {
    // The program's ranks agree to recover when one of them has failed.
    if (scenario_.may_drop && state.failed == state.rank[i].generation + 1U) {
      go(state, i, kCome);
    }
  } else if (step >= kCome) {
    recover(state, i);
  } else {
    exchange(state, i);
  }
}

void Model::exchange(State state, std::size_t i) {
  Rank& me = state.rank[i];
  const Ticket ticket = ticket_of(me);
  const Rank& peer = state.rank[me.peer];
  const std::size_t slot = slot_of(me);
  const std::uint64_t seen = peer.state[slot];
  switch (me.step) {
    case kSlot:
      if (!scenario_.waits_for_slot || me.sequence <= scenario_.ring ||
          is_over(seen, ticket - scenario_.ring)) {
        next_peer(state, i, kWrite);
      } else if (has_failed(state, me)) {
        go(state, i, kCome);
      }
      break;
    case kWrite: me.source = kGarbage; return go(state, i, kWritten);
    case kWritten: me.source = mark(me); return go(state, i, kFill);
    case kFill: me.content[slot] = kGarbage; return go(state, i, kFilled);
    case kFilled: me.content[slot] = mark(me); return go(state, i, kPost);
    case kPost: return set_phase(state, i, Phase::kPosted, kAwaitPosted);
    case kAwaitPosted:
      if (has_posted(seen, ticket)) {
        next_peer(state, i, kCompare);
      } else if (has_failed(state, me)) {
        go(state, i, kDrop);
      }
      if (scenario_.may_drop && i == 0 && me.generation == 0 && !me.has_dropped) {
        go(state, i, kDrop);
      }
      break;
    case kCompare:
      fail_unless(peer.content[slot] == mark(me), "a slot was reused while it was read", i);
      return next_peer(state, i, kSetReading);
    case kSetReading: return set_phase(state, i, Phase::kReading, kLookForDrop);
    case kLookForDrop:
      if (scenario_.looks_for_drop && is_in(seen, ticket, Phase::kDropped)) {
        return go(state, i, kDrop);
      }
      return next_peer(state, i, kRead);
    case kRead:
      fail_unless(peer.source == mark(me), "a source was written while it was read", i);
      return next_peer(state, i, kSetDone);
    case kSetDone: return set_phase(state, i, Phase::kDone, kAwaitDone);
    case kAwaitDone:
      if (!scenario_.waits_for_done || is_done(seen, ticket)) {
        if (me.peer + 1U == scenario_.ranks) {
          return finish_exchange(state, i);
        }
        next_peer(state, i, kAwaitDone);
      } else if (has_failed(state, me) || is_in(seen, ticket, Phase::kDropped)) {
        go(state, i, kDrop);
      }
      break;
    case kDrop: me.has_dropped = 1; return set_phase(state, i, Phase::kDropped, kDropWait);
    case kDropWait:
      if (me.peer == i || !scenario_.drop_waits_for_readers ||
          !is_in(seen, ticket, Phase::kReading)) {
        next_peer(state, i, kDropped);
      }
      break;
    case kDropped:  // its owner uses the source for something else, and tells the failure
      me.source = kGarbage;
      state.failed = std::max<std::uint64_t>(state.failed, me.generation + 1U);
      return go(state, i, kCome);
    default: break;
  }
}

void Model::recover(State state, std::size_t i) {
  Rank& me = state.rank[i];
  const std::uint8_t next = static_cast<std::uint8_t>(me.generation + 1);
  const bool has_begun = state.generation >= next;
  switch (me.step) {
    case kCome:
      if (has_begun) {
        return go(state, i, kAdvance);
      }
      state.failed = std::max<std::uint64_t>(state.failed, next);
      me.here = next;
      return go(state, i, kMeet);
    case kMeet:
      if (!scenario_.all_recover || has_begun || state.rank[me.peer].here >= next) {
        next_peer(state, i, kAdvance);
      } else if (scenario_.may_give_up && i == 0 && !me.has_given_up) {
        go(state, i, kRetract);
      }
      break;
    case kRetract:
      me.has_given_up = 1;
      me.here = 0;
      return go(state, i, kRetracted);
    case kRetracted: return go(state, i, has_begun ? kAdvance : kCome);
    case kAdvance:
      if (!has_begun) {
        state.generation = next;
      }
      me.generation = next;
      me.sequence = 1;
      return go(state, i, kSlot);
    default: break;
  }
}

void expect_safe(const Scenario& scenario, std::size_t at_least) {
  const Model model(scenario);
  EXPECT_EQ(model.violation(), "");
  EXPECT_GT(model.states(), at_least);
}

void expect_violation(const Scenario& scenario, std::string_view what) {
  const std::string violation = Model(scenario).violation();
  EXPECT_NE(violation.find(what), std::string::npos)
      << "expected \"" << what << "\", found \"" << violation << "\"";
}

TEST(ExchangeModel, NobodyReadsWhatIsWrittenAndAllEnd) {
  expect_safe({.ranks = 2, .ring = 1, .exchanges = 4}, 300);
  expect_safe({.ranks = 2, .ring = 2, .exchanges = 4}, 300);
  expect_safe({.ranks = 3, .ring = 1, .exchanges = 2}, 5000);
}

TEST(ExchangeModel, ADropAndARecoveryAreSafeInEveryOrder) {
  expect_safe({.ranks = 2, .ring = 1, .exchanges = 2, .may_drop = true}, 1000);
  expect_safe({.ranks = 2, .ring = 2, .exchanges = 3, .may_drop = true, .may_give_up = true}, 1000);
  expect_safe({.ranks = 3, .ring = 1, .exchanges = 1, .may_drop = true}, 10000);
}

TEST(ExchangeModel, EveryRuleIsNeeded) {
  expect_violation({.ring = 2, .waits_for_done = false}, "a source was written while it was read");
  expect_violation({.waits_for_done = false, .waits_for_slot = false}, "");
  expect_violation({.may_drop = true, .looks_for_drop = false}, "a source was written");
  expect_violation({.may_drop = true, .drop_waits_for_readers = false}, "a source was written");
  expect_violation({.may_drop = true, .all_recover = false}, "while it was read");
}

}  // namespace
}  // namespace fsdp::shm
