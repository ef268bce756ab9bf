// SPDX-License-Identifier: Apache-2.0
/// The program on several hosts of several ranks each: shared memory inside a host, Gloo between
/// hosts. FSDP_HOST_ID makes hosts of pairs of ranks.
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "e2e/program.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

TEST(TwoLevels, FourRanksOnTwoHostsTrainLikeOneRank) {
  const TemporaryDirectory directory;
  directory.write("text", sample_text(20000));
  const auto flags = [&](const std::string& log) {
    return laid_over(tiny_training(directory.path("text"), ""),
                     {"--steps", "20", "--optimizer", "sgd", "--lr", "0.3", "--sample", "0",
                      "--log", directory.path(log)});
  };
  const CommandResult one = run_fsdp(flags("one") + std::vector<std::string>{"--ranks", "1"});
  EXPECT_EQ(one.code, 0) << one.err;
  const CommandResult four =
      run_fsdp(std::vector<std::string>{"run", "-n", "4", "sh", "-c",
                                        "FSDP_HOST_ID=host$((RANK / 2)) exec \"$0\" \"$@\"",
                                        fsdp_program()} +
               flags("four"));
  EXPECT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.out + four.err, testing::HasSubstr("4 over shm+gloo"));
  const auto expected = read_log(directory.path("one"));
  const auto actual = read_log(directory.path("four"));
  ASSERT_EQ(expected.size(), 20U);
  ASSERT_EQ(actual.size(), 20U);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(actual[step].loss, expected[step].loss, 1e-5 * expected[step].loss);
    EXPECT_NEAR(actual[step].grad_norm, expected[step].grad_norm, 1e-4 * expected[step].grad_norm);
  }
}

}  // namespace
}  // namespace fsdp::test
