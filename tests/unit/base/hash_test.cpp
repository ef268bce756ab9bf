// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"

#include <gtest/gtest.h>

#include <array>

namespace fsdp::base {
namespace {

// The vectors that its authors publish (draft-eastlake-fnv, section 8).
TEST(Fnv1a, HasTheValuesThatItsAuthorsPublish) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8U);
}

TEST(Fnv1a, TakesPartsAsTheWhole) {
  Fnv1a parts;
  parts.add("foo");
  parts.add_value(std::array<char, 3>{'b', 'a', 'r'});
  EXPECT_EQ(parts.value(), fnv1a("foobar"));
}

}  // namespace
}  // namespace fsdp::base
