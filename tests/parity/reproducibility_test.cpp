// SPDX-License-Identifier: Apache-2.0
/// What a run's numbers depend on: the seed and the global batch; not the number of ranks beyond
/// rounding, nor what else happens on the machine.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/processes.hpp"
#include "support/subjects.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

/// Rank 0's weights after a few steps.
Snapshot train(const SubjectKind& kind, int size, at::ScalarType dtype) {
  std::mutex mutex;
  Snapshot of_first;
  run_threads(size, [&](World world) {
    const Options options = test_options(make_subject(kind, dtype).units);
    const Snapshot snapshot = train_sharded(kind, world, options, sgd_with_momentum(), 5, dtype);
    std::lock_guard lock(mutex);
    if (world.rank() == 0) {
      of_first = snapshot;
    }
  });
  return of_first;
}

TEST(Reproducibility, Fault121_TheSameGlobalBatchGivesTheSameResultAtAnyWorldSize) {
  const SubjectKind kind = tiny_gpt(/*tied=*/true);
  const Snapshot expected = train_reference(kind, 1, sgd_with_momentum(), 5, at::kDouble);
  for (const int size : {1, 2, 3, 4, 6, 8}) {
    SCOPED_TRACE(size);
    expect_parity(train(kind, size, at::kDouble), expected);
  }
}

TEST(Reproducibility, Fault121_TwoRunsAtOneWorldSizeGiveTheSameBits) {
  const SubjectKind kind = tiny_gpt(/*tied=*/true);
  for (const int size : {1, 2, 3, 4, 6, 8}) {
    SCOPED_TRACE(size);
    const Snapshot first = train(kind, size, at::kFloat);
    const Snapshot second = train(kind, size, at::kFloat);
    for (std::size_t i = 0; i < first.parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(first.parameters[i], second.parameters[i])) << i;
      EXPECT_TRUE(torch::equal(first.first_gradients[i], second.first_gradients[i])) << i;
    }
  }
}

/// Every rank's `tensor`, in the order of ranks.
at::Tensor of_all_ranks(const World& world, const at::Tensor& tensor) {
  const at::Tensor all = torch::empty({world.size() * tensor.numel()}, tensor.options());
  world.transport().all_gather(all, tensor.contiguous().view(-1), {.name = "of all ranks"})->wait();
  return all.view({world.size(), -1});
}

/// A rank that seeds itself by its own number, as programs do, and shards: first its weights, then
/// its dropout masks.
struct Draws {
  at::Tensor weights, masks;
};
Draws draw(const World& world, std::uint64_t seed) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(world.rank()));
  nn::Linear layer(nn::LinearOptions(16, 16).bias(false));
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const Sharded sharded = fully_shard(layer, world, test_options({}));
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), state))
      << "sharding drew random numbers";
  const at::Tensor masks = torch::dropout(torch::ones({64}), 0.5, /*train=*/true);
  const FullParameters full = sharded.full_parameters();
  return {of_all_ranks(world, layer->weight.detach()), of_all_ranks(world, masks)};
}

TEST(Reproducibility, Fault120_WeightsAreCommonAndMasksAreOfEachRank) {
  for (const auto& result : run_processes(2, "random streams", [](int) {
         const World world = init({.transport = "shm"});
         const Draws first = draw(world, 5), second = draw(world, 5), other = draw(world, 50);
         EXPECT_TRUE(torch::equal(first.weights[0], first.weights[1]));
         EXPECT_FALSE(torch::equal(first.masks[0], first.masks[1]));
         EXPECT_TRUE(torch::equal(first.weights, second.weights));
         EXPECT_TRUE(torch::equal(first.masks, second.masks));
         EXPECT_FALSE(torch::equal(first.weights, other.weights));
       })) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
