// SPDX-License-Identifier: Apache-2.0
/// Byte-pair merges: which two neighbours join, in which order, into what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <vector>

namespace fsdp::tokens::detail {

/// An id inside the tokenizer: half the memory of the public one.
using Id = std::int32_t;

/// What a pair becomes; the lower rank merges first.
struct Merge {
  std::int32_t rank = 0;
  Id id = 0;
};

/// Pairs of neighbours and their merges: a hash table with open addressing, since it is asked a few
/// times for every byte that no cache knows.
class Merges {
 public:
  /// Adds a pair, unless it is there already: the first has the lower rank.
  void add(Id left, Id right, Merge merge);
  std::optional<Merge> find(Id left, Id right) const;
  std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint64_t pair = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  std::size_t slot_of(std::uint64_t pair) const;
  void grow();

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

/// Joins neighbours until none can be joined, always the pair of the lowest rank, of equal ones
/// the leftmost. Keeps its memory from call to call. O(n log n) for n symbols.
///
/// *Source*: Sennrich et al. 2016; pairs wait in a heap as in Hugging Face's tokenizers, so that a
/// piece of a million bytes takes a second and not a day. *Thread safety*: one call at a time.
class Merger {
 public:
  /// Joins `symbols` in place and shortens them.
  void run(const Merges& merges, std::vector<Id>& symbols);

 private:
  struct Candidate {
    std::int32_t rank;
    std::int32_t left;  ///< position of the left neighbour
    Id id;              ///< what the two become
    /// std::priority_queue shows the greatest first, which is to be the lowest rank.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  struct Neighbours {
    std::int32_t previous, next;  ///< positions; -1: none
  };

  void propose(const Merges& merges, std::span<const Id> symbols, std::int32_t left);

  std::vector<Neighbours> neighbours_;
  std::priority_queue<Candidate> candidates_;
};

}  // namespace fsdp::tokens::detail
