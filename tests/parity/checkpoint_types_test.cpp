// SPDX-License-Identifier: Apache-2.0
/// Element types on their way to a file and back.
#include <gmock/gmock.h>

#include "fsdp/archive/weights.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/checkpoint/weights.hpp"
#include "parity/checkpoint_support.hpp"
#include "support/error_of.hpp"
#include "support/temporary_directory.hpp"

namespace fsdp::test {
namespace {

/// Buffers of every type that LibTorch and safetensors both have, beside the usual ones.
struct Typed : torch::nn::Module {
  explicit Typed(std::int64_t first) : linear(register_module("linear", torch::nn::Linear(3, 2))) {
    const at::Tensor numbers = torch::arange(first, first + 6).view({2, 3});
    for (const at::ScalarType type : {at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat,
                                      at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      register_buffer(std::string("as_") + c10::toString(type), numbers.to(type));
    }
  }
  torch::nn::Linear linear;
};

TEST(CheckpointTypes, Fault149_EveryTypeThatBothSidesHaveIsSavedAndLoaded) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    const auto model = std::make_shared<Typed>(1), other = std::make_shared<Typed>(40);
    const auto shard = [&](const std::shared_ptr<Typed>& one) {
      return fully_shard(one, world, {.debug = {.print_promise = false}});
    };
    Sharded sharded = shard(model), loaded = shard(other);
    checkpoint::Saver saver(directory.path("run"), sharded);
    saver.save(1);
    saver.wait();
    checkpoint::save_safetensors(sharded, directory.path("one.safetensors"));
    checkpoint::load(directory.path("run"), loaded, nullptr);
    const auto expect_same = [&] {
      for (const auto& item : model->named_buffers()) {
        const at::Tensor found = other->named_buffers()[item.key()];
        EXPECT_EQ(found.scalar_type(), item.value().scalar_type());
        EXPECT_TRUE(at::equal(found.view(at::kByte), item.value().view(at::kByte))) << item.key();
      }
    };
    expect_same();
    for (auto& item : other->named_buffers()) {
      item.value().view(at::kByte).fill_(3);
    }
    checkpoint::load_weights(directory.path("one.safetensors"), loaded);
    expect_same();
  });
}

TEST(CheckpointTypes, Fault149_OneFileOfSeveralSaysWhatToGive) {
  const TemporaryDirectory directory;
  run_threads(2, [&](World world) {
    torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::Linear(2, 3));
    Sharded sharded = fully_shard(model, world, {.debug = {.print_promise = false}});
    checkpoint::save_safetensors(sharded, directory.path("one.safetensors"));
    if (world.rank() == 0) {
      archive::write_weights(archive::WeightSource(directory.path("one.safetensors")),
                             directory.path("parts"), {.max_file_bytes = 40});
    }
    world.barrier();
    const std::string parts = directory.path("parts");
    EXPECT_THAT(error_of([&] {
                  checkpoint::load_weights(parts + "/model-00001-of-00002.safetensors", sharded);
                }),
                testing::AllOf(testing::HasSubstr("missing in the file"),
                               testing::HasSubstr("give their directory, '" + parts + "'")));
    checkpoint::load_weights(parts, sharded);
  });
}

}  // namespace
}  // namespace fsdp::test
