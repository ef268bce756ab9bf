// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdp::base {
namespace {

TEST(Text, ListsNumbersAndWords) {
  EXPECT_EQ(list_text(std::vector<int>{}), "");
  EXPECT_EQ(list_text(std::vector<int>{3}), "3");
  EXPECT_EQ(list_text(std::vector<std::size_t>{1, 3, 10}), "1, 3, 10");
  EXPECT_EQ(list_text(std::vector<std::string>{"h.0", "h.1"}), "h.0, h.1");
  std::string list = "0";
  append_to_list(list, 7);
  append_to_list(list, "and more");
  EXPECT_EQ(list, "0, 7, and more");
}

TEST(Text, TakesTheFirstLineWithoutItsEnd) {
  EXPECT_EQ(first_line("what\nwhere\nwhy"), "what");
  EXPECT_EQ(first_line("what"), "what");
  EXPECT_EQ(first_line(""), "");
}

}  // namespace
}  // namespace fsdp::base
