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

TEST(Text, Fault161_WhatATerminalWouldObeyIsShownAsNumbers) {
  EXPECT_EQ(shown("wte.weight \xc3\xbc\n\tnext"), "wte.weight \xc3\xbc\n\tnext");
  EXPECT_EQ(shown("\x1b[2J\x07\r\x7f"), "\\x1b[2J\\x07\\x0d\\x7f");
  EXPECT_EQ(shown("\xc2\x9b"
                  "31m \xc2\xa0 \xc2"),
            "\\x9b"
            "31m \xc2\xa0 \xc2");
  EXPECT_EQ(shown(std::string(1, '\0')), "\\x00");
}

TEST(Text, TakesTheFirstLineWithoutItsEnd) {
  EXPECT_EQ(first_line("what\nwhere\nwhy"), "what");
  EXPECT_EQ(first_line("what"), "what");
  EXPECT_EQ(first_line(""), "");
}

}  // namespace
}  // namespace fsdp::base
