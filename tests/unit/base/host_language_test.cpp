// SPDX-License-Identifier: Apache-2.0
#include "base/host_language.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace {

using namespace fsdp;

int locks = 0;

TEST(HostLanguage, WithoutOneNothingHappensAndWithOneItIsAsked) {
  const Error error(ErrorCode::kTimeout, "late");
  base::raise_for_host(error);
  EXPECT_FALSE(base::host_wants_out());
  {
    const base::OutsideHost outside;
  }

  base::set_host_language({.raise = [](const Error& of) { throw std::domain_error(of.text()); },
                           .wants_out = [] { return true; },
                           .let_go = []() -> void* {
                             --locks;
                             return &locks;
                           },
                           .take = [](void* state) { ++*static_cast<int*>(state); }});
  EXPECT_THROW(base::raise_for_host(error), std::domain_error);
  EXPECT_TRUE(base::host_wants_out());
  {
    const base::OutsideHost outside;
    EXPECT_EQ(locks, -1);
  }
  EXPECT_EQ(locks, 0);
  base::set_host_language({});
  base::raise_for_host(error);
  EXPECT_FALSE(base::host_wants_out());
}

}  // namespace
