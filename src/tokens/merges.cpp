// SPDX-License-Identifier: Apache-2.0
#include "tokens/merges.hpp"

#include <algorithm>

namespace fsdp::tokens::detail {
namespace {

constexpr std::size_t kFirstSlots = 1024;
/// A symbol that was joined to its left neighbour.
constexpr Id kGone = -1;

std::uint64_t key(Id left, Id right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

std::size_t Merges::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  // Fibonacci hashing: the high bits of the product depend on all bits of both ids.
  std::size_t slot = static_cast<std::size_t>(pair * 0x9e3779b97f4a7c15u >> 20) & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void Merges::grow() {
  std::vector<Slot> old(std::max(kFirstSlots, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.pair != kEmpty) {
      slots_[slot_of(slot.pair)] = slot;
    }
  }
}

void Merges::add(Id left, Id right, Merge merge) {
  if (2 * (size_ + 1) > slots_.size()) {
    grow();
  }
  Slot& slot = slots_[slot_of(key(left, right))];
  if (slot.pair == kEmpty) {
    slot = {.pair = key(left, right), .merge = merge};
    ++size_;
  }
}

std::optional<Merge> Merges::find(Id left, Id right) const {
  if (slots_.empty()) {
    return std::nullopt;
  }
  const Slot& slot = slots_[slot_of(key(left, right))];
  return slot.pair == kEmpty ? std::nullopt : std::optional<Merge>(slot.merge);
}

void Merger::propose(const Merges& merges, std::span<const Id> symbols, std::int32_t left) {
  const std::int32_t right = left < 0 ? -1 : neighbours_[static_cast<std::size_t>(left)].next;
  if (right < 0) {
    return;
  }
  const auto merge = merges.find(symbols[static_cast<std::size_t>(left)],
                                 symbols[static_cast<std::size_t>(right)]);
  if (merge) {
    candidates_.push({.rank = merge->rank, .left = left, .id = merge->id});
  }
}

void Merger::run(const Merges& merges, std::vector<Id>& symbols) {
  const auto count = static_cast<std::int32_t>(symbols.size());
  neighbours_.resize(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    neighbours_[static_cast<std::size_t>(i)] = {.previous = i - 1,
                                                .next = i + 1 < count ? i + 1 : -1};
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    propose(merges, symbols, i);
  }
  while (!candidates_.empty()) {
    const Candidate best = candidates_.top();
    candidates_.pop();
    const auto left = static_cast<std::size_t>(best.left);
    const std::int32_t next = neighbours_[left].next;
    if (symbols[left] == kGone || next < 0) {
      continue;
    }
    // The pair may have changed since it was proposed; then it was proposed anew.
    const auto right = static_cast<std::size_t>(next);
    const auto now = merges.find(symbols[left], symbols[right]);
    if (!now || now->id != best.id) {
      continue;
    }
    symbols[left] = best.id;
    symbols[right] = kGone;
    const std::int32_t after = neighbours_[right].next;
    neighbours_[left].next = after;
    if (after >= 0) {
      neighbours_[static_cast<std::size_t>(after)].previous = best.left;
    }
    propose(merges, symbols, neighbours_[left].previous);
    propose(merges, symbols, best.left);
  }
  std::erase(symbols, kGone);
}

}  // namespace fsdp::tokens::detail
