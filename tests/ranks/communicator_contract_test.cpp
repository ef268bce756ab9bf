// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"
#include "fsdp/comm/world.hpp"

namespace fsdp {
namespace {

TEST(RunThreads, GathersAndReduces) {
  for (int size : {1, 2, 3, 4, 7}) {
    run_threads(size, [&](World world) {
      comm::Communicator& group = world.communicator();
      at::Tensor dst = at::zeros({size * 5});
      group.all_gather(dst, at::full({5}, float(world.rank())), {})->wait();
      for (int r = 0; r < size; ++r) {
        EXPECT_TRUE(dst.narrow(0, r * 5, 5).eq(r).all().item<bool>());
      }
      at::Tensor sum = at::zeros({5});
      group.reduce_scatter(sum, dst, {.divisor = double(size)}, {})->wait();
      EXPECT_TRUE(sum.eq(world.rank()).all().item<bool>());
      at::Tensor shared = group.shared_memory(64, {});
      if (world.rank() == 0) shared.fill_(7);
      world.barrier();
      EXPECT_TRUE(shared.eq(7).all().item<bool>());
    });
  }
}

TEST(RunThreads, RethrowsTheFirstFailure) {
  try {
    run_threads(3, [&](World world) {
      if (world.rank() == 1) fail(ErrorCode::kIo, "disk full");
      world.barrier();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "rank 1: disk full");
  }
}

}  // namespace
}  // namespace fsdp
