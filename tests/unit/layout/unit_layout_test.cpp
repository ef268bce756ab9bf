// SPDX-License-Identifier: Apache-2.0
#include "layout/unit_layout.hpp"

#include <gmock/gmock.h>

#include <string>

#include "fsdp/base/error.hpp"

namespace fsdp::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Numels = std::vector<std::int64_t>;

struct Case {
  Numels numels;
  int world_size;
  std::int64_t align_numel;
};

const std::vector<Numels>& size_lists() {
  static const std::vector<Numels> lists = {{},
                                            {0},
                                            {1},
                                            {0, 0, 0},
                                            {0, 1, 0},
                                            {5, 0},
                                            {1, 1, 1, 1, 1},
                                            {1, 2, 3, 5, 7, 9, 10},  // ROWS
                                            {35, 7, 21, 3},          // MLP66
                                            {2, 100, 0, 1},
                                            {997},
                                            {1, 997, 1},
                                            {64, 64, 64, 64}};
  return lists;
}

/// Every size list, world sizes 1 to 9, alignments of one element, odd and even.
template <class Check>
void for_each_layout(const Check& check) {
  for (const Numels& numels : size_lists()) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      for (std::int64_t align_numel : {1, 3, 4, 32}) {
        SCOPED_TRACE("sizes " + ::testing::PrintToString(numels) + ", world size " +
                     std::to_string(world_size) + ", alignment " + std::to_string(align_numel));
        check(UnitLayout(numels, world_size, align_numel), Case{numels, world_size, align_numel});
        if (::testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(UnitLayoutTest, ParametersLieBackToBackInTheirOrder) {
  for_each_layout([](const UnitLayout& layout, const Case& c) {
    ASSERT_EQ(layout.parameters(), static_cast<int>(c.numels.size()));
    EXPECT_EQ(layout.world_size(), c.world_size);
    std::int64_t next = 0;
    for (int i = 0; i < layout.parameters(); ++i) {
      EXPECT_EQ(layout.numel(i), c.numels[static_cast<std::size_t>(i)]);
      EXPECT_EQ(layout.offset(i), next);
      next += layout.numel(i);
    }
    EXPECT_EQ(layout.total_numel(), next);
  });
}

TEST(UnitLayoutTest, SlicesAreEqualAlignedAndNoLongerThanNecessary) {
  for_each_layout([](const UnitLayout& layout, const Case& c) {
    EXPECT_EQ(layout.padded_numel(), layout.shard_numel() * c.world_size);
    EXPECT_EQ(layout.shard_numel() % c.align_numel, 0);
    EXPECT_GE(layout.padded_numel(), layout.total_numel());
    const std::int64_t shorter = layout.shard_numel() - c.align_numel;
    EXPECT_TRUE(layout.shard_numel() == 0 || shorter * c.world_size < layout.total_numel());
  });
}

TEST(UnitLayoutTest, EveryElementLiesInExactlyOneSlice) {
  for_each_layout([](const UnitLayout& layout, const Case& c) {
    // The owner of every element of the flat buffer, found by walking the pieces.
    std::vector<int> copies(static_cast<std::size_t>(layout.padded_numel()), 0);
    for (int rank = 0; rank < c.world_size; ++rank) {
      for (int i = 0; i < layout.parameters(); ++i) {
        const ParameterPart piece = layout.piece(i, rank);
        for (std::int64_t k = 0; k < piece.numel; ++k) {
          const std::int64_t in_flat = rank * layout.shard_numel() + piece.shard_offset + k;
          ASSERT_EQ(in_flat, layout.offset(i) + piece.parameter_offset + k);
          ++copies[static_cast<std::size_t>(in_flat)];
        }
      }
    }
    for (std::int64_t k = 0; k < layout.padded_numel(); ++k) {
      ASSERT_EQ(copies[static_cast<std::size_t>(k)], k < layout.total_numel() ? 1 : 0)
          << "element " << k << ": padding comes last and belongs to no parameter";
    }
  });
}

TEST(UnitLayoutTest, EveryPieceIsWellFormed) {
  for_each_layout([](const UnitLayout& layout, const Case& c) {
    for (int i = 0; i < layout.parameters(); ++i) {
      std::int64_t sum = 0;
      for (int rank = 0; rank < c.world_size; ++rank) {
        const ParameterPart piece = layout.piece(i, rank);
        ASSERT_GE(piece.numel, 0);
        ASSERT_GE(piece.shard_offset, 0);
        ASSERT_LE(piece.shard_offset + piece.numel, layout.shard_numel());
        ASSERT_GE(piece.parameter_offset, 0);
        ASSERT_LE(piece.parameter_offset + piece.numel, layout.numel(i));
        if (piece.numel == 0) {
          ASSERT_EQ(piece.parameter_offset, 0);
        } else {
          ASSERT_EQ(piece.parameter_offset, sum) << "pieces follow each other by rank";
        }
        sum += piece.numel;
      }
      ASSERT_EQ(sum, layout.numel(i));
    }
  });
}

TEST(UnitLayoutTest, TheExampleOfTheHeaderIsRight) {
  const UnitLayout layout({35, 7}, 4, 1);
  EXPECT_EQ(layout.shard_numel(), 11);
  EXPECT_EQ(layout.padded_numel() - layout.total_numel(), 2);
}

TEST(UnitLayoutTest, Mlp66OnFourRanksIsCutInTheMiddleOfParameters) {
  const UnitLayout layout({35, 7, 21, 3}, 4, 1);
  EXPECT_EQ(layout.total_numel(), 66);
  EXPECT_EQ(layout.shard_numel(), 17);
  EXPECT_EQ(layout.padded_numel(), 68);
  const auto expect_piece = [&](int parameter, int rank, const ParameterPart& expected) {
    const ParameterPart piece = layout.piece(parameter, rank);
    EXPECT_EQ(piece.shard_offset, expected.shard_offset) << parameter << " on rank " << rank;
    EXPECT_EQ(piece.parameter_offset, expected.parameter_offset);
    EXPECT_EQ(piece.numel, expected.numel);
  };
  expect_piece(0, 0, {.shard_offset = 0, .parameter_offset = 0, .numel = 17});
  expect_piece(0, 1, {.shard_offset = 0, .parameter_offset = 17, .numel = 17});
  expect_piece(0, 2, {.shard_offset = 0, .parameter_offset = 34, .numel = 1});
  expect_piece(0, 3, {.shard_offset = 0, .parameter_offset = 0, .numel = 0});
  expect_piece(1, 1, {.shard_offset = 17, .parameter_offset = 0, .numel = 0});
  expect_piece(1, 2, {.shard_offset = 1, .parameter_offset = 0, .numel = 7});
  expect_piece(2, 2, {.shard_offset = 8, .parameter_offset = 0, .numel = 9});
  expect_piece(2, 3, {.shard_offset = 0, .parameter_offset = 9, .numel = 12});
  expect_piece(3, 3, {.shard_offset = 12, .parameter_offset = 0, .numel = 3});
}

TEST(UnitLayoutTest, AParameterSmallerThanTheWorldLeavesRanksEmpty) {
  const UnitLayout layout({3}, 8, 1);
  EXPECT_EQ(layout.shard_numel(), 1);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(layout.piece(0, rank).numel, rank < 3 ? 1 : 0);
  }
}

TEST(UnitLayoutTest, AlignmentPutsASmallUnitOnTheFirstRankAlone) {
  const UnitLayout layout({6}, 4, 32);
  EXPECT_EQ(layout.shard_numel(), 32);
  EXPECT_EQ(layout.piece(0, 0).numel, 6);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(layout.piece(0, rank).numel, 0);
  }
}

TEST(UnitLayoutTest, AUnitWithoutElementsHasEmptySlices) {
  for (const Numels& numels : {Numels{}, Numels{0, 0}}) {
    const UnitLayout layout(numels, 3, 32);
    EXPECT_EQ(layout.shard_numel(), 0);
    EXPECT_EQ(layout.padded_numel(), 0);
  }
}

TEST(UnitLayoutTest, SizesBeyondThirtyTwoBitsAreExact) {
  const std::int64_t large = std::int64_t{1} << 40;
  const UnitLayout layout({large, 1, large}, 3, 32);
  EXPECT_EQ(layout.total_numel(), 2 * large + 1);
  EXPECT_EQ(layout.offset(2), large + 1);
  const std::int64_t sum =
      layout.piece(2, 0).numel + layout.piece(2, 1).numel + layout.piece(2, 2).numel;
  EXPECT_EQ(sum, large);
}

TEST(UnitLayoutTest, WrongArgumentsAreRefusedWithTheirNumbers) {
  const auto message = [](const Numels& numels, int world_size, std::int64_t align_numel) {
    try {
      UnitLayout layout(numels, world_size, align_numel);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.text();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message({3}, 0, 1), AllOf(HasSubstr("world size is 0"), HasSubstr("at least 1")));
  EXPECT_THAT(message({3}, -4, 1), HasSubstr("world size is -4"));
  EXPECT_THAT(message({3}, 2, 0), AllOf(HasSubstr("alignment is 0"), HasSubstr("at least 1")));
  EXPECT_THAT(message({3, -5}, 2, 1), AllOf(HasSubstr("parameter 1"), HasSubstr("-5 elements")));
}

}  // namespace
}  // namespace fsdp::layout
