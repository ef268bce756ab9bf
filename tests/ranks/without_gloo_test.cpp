// SPDX-License-Identifier: Apache-2.0
/// The table of a build for a LibTorch without Gloo: linked with the rows that CMake chooses there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/transport_table.hpp"
#include "fsdp/comm/world.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

comm::detail::Site site(std::vector<std::string> hosts) {
  return {{.size = static_cast<int>(hosts.size())},
          {},
          "auto",
          std::chrono::seconds(1),
          std::move(hosts)};
}

TEST(WithoutGloo, NamesAreKnownAndRefusedWithTheReason) {
  EXPECT_EQ(comm::transport_words_text(), "auto, shm, gloo, shm+gloo, c10d, nccl or staged");
  for (const std::string name : {"gloo", "shm+gloo", "c10d"}) {
    EXPECT_THAT(test::error_of([&] { init({.transport = name}); }),
                AllOf(HasSubstr("[unsupported] transport " + name + " is not in this build"),
                      HasSubstr("FSDP_GLOO=OFF")));
  }
  EXPECT_NO_THROW(comm::check_transport_word("shm"));
}

TEST(WithoutGloo, OneHostIsServedAndSeveralAreToldWhyNot) {
  EXPECT_EQ(comm::detail::choose_row(site({"a", "a"})).info.traits.name, "shm");
  EXPECT_THAT(
      test::error_of([] { comm::detail::choose_row(site({"a", "b"})); }),
      AllOf(HasSubstr("[unsupported] no transport of this build connects these ranks"),
            HasSubstr("shm needs all ranks on one host"), HasSubstr("gloo is not in this build")));
}

}  // namespace
}  // namespace fsdp
