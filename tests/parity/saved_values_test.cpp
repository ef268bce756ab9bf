// SPDX-License-Identifier: Apache-2.0
/// A saved file holds, name by name and bit by bit, what the unsharded module held.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/format/safetensors.hpp"
#include "fsdp/fsdp.hpp"
#include "support/subjects.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;
namespace nn = torch::nn;

struct Everything : nn::Module {
  Everything() {
    const auto add = [this](const char* name, const at::Tensor& value, bool trains = true) {
      weights.push_back(register_parameter(name, value, trains));
    };
    add("scalar", torch::randn({}));
    add("nothing", torch::randn({0, 3}));
    add("one", torch::randn({1}, torch::kDouble));
    add("odd", torch::randn({5, 7, 3}, torch::kBFloat16));
    add("transposed", torch::randn({7, 5}).t().clone());
    add("strided", torch::randn({4, 6}).slice(1, 0, 6, 2).clone(at::MemoryFormat::Preserve));
    add("half", torch::randn({9}, torch::kHalf));
    add("long", torch::arange(11), false);
    add("bool", torch::tensor({true, false, true}), false);
    register_buffer("table", torch::arange(6).view({2, 3}).t());
    register_buffer("count", torch::tensor(7));
    register_module("convolution", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
    register_module("last", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)))
        ->weight.set_data(torch::randn({4, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
    register_module("norm", nn::BatchNorm1d(5));
    register_module("stateless",
                    nn::BatchNorm1d(nn::BatchNorm1dOptions(5).track_running_stats(false)));
    auto embedding = register_module("embedding", nn::Embedding(11, 6));
    auto head = register_module("head", nn::Linear(nn::LinearOptions(6, 11).bias(false)));
    tie_weights(*embedding, "weight", *head, "weight");
  }
  std::vector<at::Tensor> weights;
};

TEST(SavedValues, EqualTheUnshardedModule) {
  const fsdp::test::TemporaryDirectory directory;
  for (const int size : {1, 2, 3, 8}) {
    std::mutex generator;
    const std::string path = directory.path("model" + std::to_string(size) + ".safetensors");
    std::map<std::string, at::Tensor> expected;
    run_threads(size, [&](World world) {
      std::shared_ptr<Everything> model;
      {
        std::lock_guard lock(generator);
        model = std::make_shared<Everything>();
        if (world.rank() == 0) {
          for (const auto& parameter : model->named_parameters()) {
            expected[parameter.key()] = parameter.value().detach().clone().contiguous();
          }
          for (const auto& buffer : model->named_buffers()) {
            if (buffer.value().defined()) {
              expected[buffer.key()] = buffer.value().clone().contiguous();
            }
          }
          expected.erase("head.weight");
        }
      }
      Options options = test_options(units_matching("convolution|last|embedding"));
      options.precision.low_precision_shards = true;  // saved in the types that they came in
      const Sharded sharded = fully_shard(model, world, options);
      checkpoint::save_safetensors(sharded, path, {{"format", "pt"}});
      EXPECT_EQ(sharded.report().unsharded_numel, 0);
    });
    std::ifstream file(path, std::ios::binary);
    const auto header = format::read_safetensors_header(path);
    EXPECT_EQ(header.tensors.size(), expected.size());
    for (const auto& stored : header.tensors) {
      const at::Tensor& value = expected.at(stored.entry.name);
      EXPECT_EQ(stored.entry.shape, value.sizes().vec()) << stored.entry.name;
      ASSERT_EQ(static_cast<std::size_t>(stored.bytes), value.nbytes()) << stored.entry.name;
      std::string bytes(value.nbytes(), '\0');
      file.seekg(stored.offset);
      file.read(bytes.data(), stored.bytes);
      const std::string own(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
      EXPECT_EQ(bytes, own) << stored.entry.name << " at " << size << " ranks";
    }
  }
}

}  // namespace
