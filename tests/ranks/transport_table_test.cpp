// SPDX-License-Identifier: Apache-2.0
/// The table of transports: what is chosen, what names mean, and that the documentation lists the
/// same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "comm/transport_table.hpp"
#include "fsdp/base/error.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using comm::detail::Site;
using testing::AllOf;
using testing::HasSubstr;

Site site(std::vector<std::string> hosts, const std::string& wish = "auto") {
  return {{.size = static_cast<int>(hosts.size())},
          {},
          wish,
          std::chrono::seconds(1),
          std::move(hosts)};
}

std::string chosen(std::vector<std::string> hosts) {
  return comm::detail::choose_row(site(std::move(hosts))).info.traits.name;
}

TEST(TransportTable, AutoTakesTheFirstThatConnectsTheRanks) {
  EXPECT_EQ(chosen({"a", "a", "a"}), "shm");
  EXPECT_EQ(chosen({"a", "a", "b", "b"}), "shm+gloo");
  EXPECT_EQ(chosen({"a", "b", "a", "b"}), "gloo");
  EXPECT_EQ(chosen({"a", "b"}), "gloo");
}

TEST(TransportTable, WhatCannotRunSaysWhy) {
  const auto text = [](std::vector<std::string> hosts, const std::string& wish) {
    return test::error_of([&] { comm::detail::choose_row(site(std::move(hosts), wish)); });
  };
  EXPECT_THAT(text({"a", "a", "b"}, "shm"),
              AllOf(HasSubstr("[invalid argument] transport shm needs all ranks on one host"),
                    HasSubstr("rank 2 on 'b'")));
  EXPECT_THAT(text({"a", "a"}, "shm+gloo"), HasSubstr("all ranks are on one: use shm"));
  EXPECT_THAT(text({"a", "b"}, "shm+gloo"), HasSubstr("the first elsewhere is rank 1"));
  EXPECT_EQ(text({"a", "b"}, "gloo"), "no error");
}

TEST(TransportTable, NamesAreCheckedAndListed) {
  EXPECT_EQ(comm::transport_words_text(), "auto, shm, gloo, shm+gloo, c10d, nccl or staged");
  for (const std::string& word : comm::transport_words()) {
    EXPECT_NO_THROW(comm::check_transport_word(word));
  }
  EXPECT_THAT(
      test::error_of([] { comm::check_transport_word("tcp"); }),
      HasSubstr("transport is 'tcp', must be auto, shm, gloo, shm+gloo, c10d, nccl or staged"));
  EXPECT_THAT(test::error_of([] { comm::check_transport_word("threads"); }),
              HasSubstr("transport is 'threads'"));
}

std::string sums_text(comm::Sums sums) {
  switch (sums) {
    case comm::Sums::kRankOrder: return "in rank order";
    case comm::Sums::kHostOrder: return "in rank order per host, then over hosts";
    case comm::Sums::kBackend: return "as the backend does";
  }
  return "";
}

TEST(TransportTable, IsThatOfTheDocumentation) {
  std::ifstream file(FSDP_TRANSPORTS_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const auto yes = [](bool holds) { return std::string(holds ? "yes" : "no"); };
  std::string table;
  for (const comm::TransportInfo& info : comm::transports()) {
    const comm::Traits& traits = info.traits;
    table += "| `" + traits.name + "` | " + yes(info.has_word) + " | " + info.between + " | " +
             sums_text(traits.sums) + " | " + yes(traits.shares_memory) + " | " +
             yes(traits.can_split) + " | " + yes(traits.can_recover) + " |\n";
  }
  EXPECT_THAT(page, HasSubstr("|---|---|---|---|---|---|---|\n" + table + "\n"));
}

}  // namespace
}  // namespace fsdp
