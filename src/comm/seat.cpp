// SPDX-License-Identifier: Apache-2.0
#include "comm/seat.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {

struct GroupNumbers::State {
  std::mutex mutex;
  std::uint64_t used = 1;  // the whole job
};

GroupNumbers::GroupNumbers() : state_(std::make_shared<State>()) {}

std::uint64_t GroupNumbers::used() const {
  std::lock_guard lock(state_->mutex);
  return state_->used;
}

std::shared_ptr<void> GroupNumbers::take(int number) {
  const std::uint64_t bit = std::uint64_t{1} << number;
  std::lock_guard lock(state_->mutex);
  state_->used |= bit;
  return {state_.get(), [state = state_, bit](void*) {
            std::lock_guard back(state->mutex);
            state->used &= ~bit;
          }};
}

SeatPointer whole_seat(const std::string& transport, int rank, int size) {
  Seat seat;
  seat.ranks.resize(static_cast<std::size_t>(size));
  std::iota(seat.ranks.begin(), seat.ranks.end(), 0);
  seat.index = rank;
  seat.log = CollectiveLog::create(transport, rank, size);
  return std::make_shared<const Seat>(std::move(seat));
}

SeatPointer host_seat(const std::string& transport, int index, int size, int first_rank,
                      int job_size) {
  Seat seat;
  seat.name = "host";
  seat.ranks.resize(static_cast<std::size_t>(size));
  std::iota(seat.ranks.begin(), seat.ranks.end(), first_rank);
  seat.index = index;
  seat.log =
      CollectiveLog::create(transport + ", host of ranks " + std::to_string(seat.ranks.front()) +
                                " to " + std::to_string(seat.ranks.back()),
                            seat.rank(), job_size);
  return std::make_shared<const Seat>(std::move(seat));
}

Fingerprint make_fingerprint(Description description, std::uint64_t sequence, const Seat& seat,
                             std::uint64_t generation) {
  description.announced = seat.announced->in(generation);
  description.group = seat.group;
  description.group_name = seat.name;
  return make_fingerprint(description, sequence, seat.rank());
}

namespace {

/// What a rank tells of the group that it wants: this, then one byte a rank of the parent.
struct Wish {
  std::uint64_t used = 0;
  std::array<char, 120> problem{};
};

std::string list_text(std::span<const int> ranks) {
  return ranks.empty() ? "no rank" : base::list_text(ranks);
}

/// What is wrong with a list, as far as its own rank can see.
std::string find_problem(std::span<const int> ranks, int own, int size) {
  if (ranks.empty()) {
    return "gives an empty list";
  }
  if (std::ranges::adjacent_find(ranks, std::greater_equal<>()) != ranks.end()) {
    return "gives a list that does not ascend: " + list_text(ranks);
  }
  if (ranks.front() < 0 || ranks.back() >= size) {
    return "names rank " + std::to_string(ranks.front() < 0 ? ranks.front() : ranks.back()) +
           ", but there are " + std::to_string(size);
  }
  if (!std::ranges::binary_search(ranks, own)) {
    return "leaves itself out of its list " + list_text(ranks);
  }
  return "";
}

/// The wishes of all ranks of the parent.
class Wishes {
 public:
  Wishes(Job& parent, const Wish& mine, std::span<const int> ranks, const std::string& label)
      : size_(static_cast<std::size_t>(parent.size())), bytes_(sizeof(Wish) + size_) {
    std::vector<std::byte> own(bytes_);
    std::memcpy(own.data(), &mine, sizeof(mine));
    for (const int rank : ranks) {
      own[sizeof(Wish) + static_cast<std::size_t>(rank)] = std::byte{1};
    }
    all_.resize(bytes_ * size_);
    parent.exchange(own, all_, {.name = label});
  }

  Wish of(std::size_t rank) const {
    Wish wish;
    std::memcpy(&wish, all_.data() + rank * bytes_, sizeof(wish));
    return wish;
  }

  std::vector<int> list_of(std::size_t rank) const {
    std::vector<int> list;
    for (std::size_t other = 0; other < size_; ++other) {
      if (all_[rank * bytes_ + sizeof(Wish) + other] == std::byte{1}) {
        list.push_back(static_cast<int>(other));
      }
    }
    return list;
  }

  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::size_t bytes_;
  std::vector<std::byte> all_;
};

/// The same on all ranks, as all hold the same wishes.
void check_wishes(const Wishes& wishes, const std::string& label) {
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    const std::string problem = wishes.of(rank).problem.data();
    FSDP_CHECK(problem.empty(), ErrorCode::kInvalidArgument, "split \"", label, "\": rank ", rank,
               " ", problem,
               ". Each rank gives the ascending list of its own group, itself included");
  }
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    const std::vector<int> list = wishes.list_of(rank);
    for (const int member : list) {
      const std::vector<int> other = wishes.list_of(static_cast<std::size_t>(member));
      FSDP_CHECK(list == other, ErrorCode::kMismatch, "split \"", label, "\": rank ", rank,
                 " names the group ", list_text(list), ", but rank ", member, " names ",
                 list_text(other), ": all ranks of a group must give the same list");
    }
  }
}

int choose_number(const Wishes& wishes, const std::string& label) {
  std::uint64_t used = 0;
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    used |= wishes.of(rank).used;
  }
  const int number = std::countr_one(used);
  FSDP_CHECK(number < GroupNumbers::kNumbers, ErrorCode::kInvalidArgument, "split \"", label,
             "\": a rank has ", GroupNumbers::kNumbers - 1,
             " groups already; destroy those that are not used, or share one DeviceMesh");
  return number;
}

}  // namespace

SeatPointer agree_on_split(Job& parent, const std::string& transport, const Seat& seat,
                           GroupNumbers& numbers, std::span<const int> ranks,
                           const std::string& label, int world_size) {
  Wish mine{.used = numbers.used()};
  const std::string problem = find_problem(ranks, parent.rank(), parent.size());
  problem.copy(mine.problem.data(), mine.problem.size() - 1);
  const Wishes wishes(parent, mine, problem.empty() ? ranks : std::span<const int>(),
                      "split: " + label);
  check_wishes(wishes, label);

  Seat made;
  made.group = choose_number(wishes, label);
  made.name = label;
  for (const int rank : ranks) {
    made.ranks.push_back(seat.ranks[static_cast<std::size_t>(rank)]);
  }
  made.index = static_cast<int>(std::ranges::find(made.ranks, seat.rank()) - made.ranks.begin());
  made.lease = numbers.take(made.group);
  made.log = CollectiveLog::create(
      transport + ", group \"" + label + "\" of ranks " + list_text(made.ranks), seat.rank(),
      world_size);
  return std::make_shared<const Seat>(std::move(made));
}

}  // namespace fsdp::comm::detail
