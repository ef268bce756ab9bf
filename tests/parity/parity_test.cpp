// SPDX-License-Identifier: Apache-2.0
/// Sharded training computes what one process computes: every kind of module, world size and
/// alignment, gradients of the first step and parameters after five.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

class Parity : public testing::TestWithParam<std::tuple<std::size_t, int, int>> {
 protected:
  SubjectKind kind() const { return all_subject_kinds()[std::get<0>(GetParam())]; }
  int size() const { return std::get<1>(GetParam()); }
  std::int64_t align_bytes() const { return std::get<2>(GetParam()); }

  void expect_equal_to_one_process(const Options& base, const OptimizerFactory& optimizer,
                                   at::ScalarType dtype = at::kDouble) {
    const Snapshot expected = train_reference(kind(), size(), optimizer, 5, dtype);
    std::mutex mutex;
    run_threads(size(), [&](World world) {
      Options options = base;
      {
        const Subject subject = make_subject(kind(), dtype);
        options.units = subject.units;
      }
      const Snapshot actual = train_sharded(kind(), world, options, optimizer, 5, dtype);
      std::lock_guard lock(mutex);
      SCOPED_TRACE("rank " + std::to_string(world.rank()));
      expect_parity(actual, expected);
    });
  }
};

TEST_P(Parity, SgdWithMomentumEqualsOneProcess) {
  expect_equal_to_one_process(test_options({}, align_bytes()), sgd_with_momentum());
}

TEST_P(Parity, AdamEqualsOneProcess) {
  expect_equal_to_one_process(test_options({}, align_bytes(), 2), adam());
}

TEST_P(Parity, AliasedMemoryEqualsOneProcess) {
  Options options = test_options({}, align_bytes());
  options.memory.store = Store::kAliased;
  expect_equal_to_one_process(options, sgd_with_momentum());
}

TEST_P(Parity, KeptRootInSinglePrecisionEqualsOneProcess) {
  Options options = test_options({}, align_bytes(), 0);
  options.rules.push_back({.units = root_unit(), .keep_gathered = true});
  expect_equal_to_one_process(options, sgd_with_momentum(), at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, Parity,
    testing::Combine(testing::Range(std::size_t{0}, all_subject_kinds().size()),
                     testing::Values(1, 2, 3, 4, 7, 8), testing::Values(0, 128)),
    [](const auto& tested) {
      return all_subject_kinds()[std::get<0>(tested.param)].name + "_" +
             std::to_string(std::get<1>(tested.param)) + "ranks_align" +
             std::to_string(std::get<2>(tested.param));
    });

class ProcessParity : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, ProcessParity, testing::Values("gloo", "shm"),
                         [](const auto& tested) { return tested.param; });

TEST_P(ProcessParity, TwoProcessesEqualOneProcess) {
  for (const auto& result : run_processes(2, "all kinds", [](int) {
         const World world = init({.transport = GetParam()});
         for (const SubjectKind& kind : all_subject_kinds()) {
           for (const Store store : {Store::kSlots, Store::kAliased}) {
             SCOPED_TRACE(kind.name);
             const Snapshot expected = train_reference(kind, 2, sgd_with_momentum(), 5);
             Options options = test_options(make_subject(kind).units);
             options.memory.store = store;
             expect_parity(train_sharded(kind, world, options, sgd_with_momentum(), 5), expected);
           }
         }
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(HostParity, FourProcessesOnTwoHostsEqualOneProcess) {
  for (const auto& result : run_processes(4, "hosts", [](int rank) {
         ::setenv("FSDP_HOST_ID", rank < 2 ? "east" : "west", 1);
         const World world = init();
         EXPECT_EQ(world.transport().traits().name, "shm+gloo");
         for (const SubjectKind& kind : {odd_mlp(), tiny_gpt(true)}) {
           SCOPED_TRACE(kind.name);
           const Snapshot expected = train_reference(kind, 4, sgd_with_momentum(), 5);
           const Options options = test_options(make_subject(kind).units);
           expect_parity(train_sharded(kind, world, options, sgd_with_momentum(), 5), expected);
         }
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
