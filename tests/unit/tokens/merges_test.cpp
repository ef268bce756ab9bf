// SPDX-License-Identifier: Apache-2.0
#include "tokens/merges.hpp"

#include <gmock/gmock.h>

#include <random>

namespace fsdp::tokens::detail {
namespace {

using ::testing::ElementsAre;

std::vector<Id> joined(const Merges& merges, std::vector<Id> symbols) {
  Merger merger;
  merger.run(merges, symbols);
  return symbols;
}

/// The definition, word by word: look at all neighbours, join the best, begin again.
std::vector<Id> joined_by_definition(const Merges& merges, std::vector<Id> symbols) {
  while (true) {
    std::optional<Merge> best;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto merge = merges.find(symbols[i], symbols[i + 1]);
      if (merge && (!best || merge->rank < best->rank)) {
        best = merge;
        place = i;
      }
    }
    if (!best) {
      return symbols;
    }
    symbols[place] = best->id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(MergesTest, TheLowestRankJoinsFirst) {
  Merges merges;
  merges.add(1, 2, {.rank = 5, .id = 12});
  merges.add(2, 3, {.rank = 4, .id = 23});
  EXPECT_THAT(joined(merges, {1, 2, 3}), ElementsAre(1, 23));
  merges.add(1, 23, {.rank = 6, .id = 123});
  EXPECT_THAT(joined(merges, {1, 2, 3}), ElementsAre(123));
  EXPECT_THAT(joined(merges, {1, 2, 2, 3}), ElementsAre(12, 23));
}

TEST(MergesTest, OfEqualPairsTheLeftmostJoinsFirst) {
  Merges merges;
  merges.add(1, 1, {.rank = 0, .id = 2});
  EXPECT_THAT(joined(merges, {1, 1, 1}), ElementsAre(2, 1));
  EXPECT_THAT(joined(merges, {1, 1, 1, 1, 1}), ElementsAre(2, 2, 1));
  EXPECT_THAT(joined(merges, {}), ElementsAre());
  EXPECT_THAT(joined(merges, {1}), ElementsAre(1));
}

TEST(MergesTest, APairKeepsItsFirstRank) {
  Merges merges;
  merges.add(1, 2, {.rank = 1, .id = 10});
  merges.add(1, 2, {.rank = 9, .id = 11});
  EXPECT_EQ(merges.size(), 1u);
  EXPECT_EQ(merges.find(1, 2)->id, 10);
  EXPECT_FALSE(merges.find(2, 1));
}

TEST(MergesTest, TheHeapJoinsLikeTheDefinition) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    // As trained ones: a merge joins what is there already and makes one new symbol.
    Merges merges;
    const Id letters = 2 + static_cast<Id>(random() % 4);
    Id symbols = letters;
    for (std::int32_t rank = 0; rank < 40; ++rank) {
      const auto count = static_cast<unsigned>(symbols);
      merges.add(static_cast<Id>(random() % count), static_cast<Id>(random() % count),
                 {.rank = rank, .id = symbols});
      ++symbols;
    }
    std::vector<Id> text(random() % 200);
    for (Id& symbol : text) {
      symbol = static_cast<Id>(random() % static_cast<unsigned>(letters));
    }
    EXPECT_EQ(joined(merges, text), joined_by_definition(merges, text));
  }
}

TEST(MergesTest, AMillionSymbolsTakeNoSquareOfSteps) {
  Merges merges;
  merges.add(1, 1, {.rank = 0, .id = 2});
  merges.add(2, 2, {.rank = 1, .id = 3});
  EXPECT_EQ(joined(merges, std::vector<Id>(1'000'000, 1)), std::vector<Id>(250'000, 3));
}

}  // namespace
}  // namespace fsdp::tokens::detail
