// SPDX-License-Identifier: Apache-2.0
/// A saved file holds exactly the module's tensors, whatever the world size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "checkpoint/save_weights.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/format/safetensors.hpp"
#include "fsdp/fsdp.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace fsdp;
namespace nn = torch::nn;

struct Mixed : nn::Module {
  Mixed()
      : scalar(register_parameter("scalar", torch::full({}, 2.5))),
        none(register_parameter("none", torch::ones({0, 3}))),
        turned(register_parameter("turned", torch::randn({4, 6}).t().clone())),
        wide(register_parameter("wide", torch::randn({3, 5}, torch::kDouble))),
        half(register_parameter("half", torch::randn({7}).to(torch::kBFloat16))),
        norm(register_module("norm", nn::BatchNorm1d(5))) {}
  at::Tensor scalar, none, turned, wide, half;
  nn::BatchNorm1d norm;
};

std::string read_bytes(const std::string& path, std::int64_t offset, std::int64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  file.read(content.data(), bytes);
  return content;
}

std::string bytes_of_file(const std::string& path) {
  return read_bytes(path, 0, static_cast<std::int64_t>(std::filesystem::file_size(path)));
}

std::map<std::string, std::string> bytes_of(const Mixed& model) {
  torch::NoGradGuard no_grad;
  std::map<std::string, std::string> bytes;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      const at::Tensor whole = item.value().detach().contiguous();
      bytes[item.key()] =
          std::string(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return bytes;
}

TEST(Saving, WritesEveryTensorAtAnyWorldSize) {
  const test::TemporaryDirectory directory;
  for (int size : {1, 2, 3, 8}) {
    const std::string path =
        (std::filesystem::path(directory.path()) / ("of" + std::to_string(size) + ".safetensors"))
            .string();
    std::map<std::string, std::string> expected;
    std::mutex mutex;
    run_threads(size, [&](World world) {
      std::shared_ptr<Mixed> model;
      {
        std::lock_guard lock(mutex);
        torch::manual_seed(3);
        model = std::make_shared<Mixed>();
        expected = bytes_of(*model);
      }
      Sharded sharded = fully_shard(model, world,
                                    {.memory = {.align_bytes = 0},
                                     .precision = {.low_precision_shards = true},
                                     .debug = {.print_promise = false}});
      checkpoint::save_safetensors(sharded, path, {{"step", "7"}});
    });
    const auto header = format::read_safetensors_header(path);
    EXPECT_EQ(header.metadata.at("step"), "7");
    EXPECT_EQ(header.tensors.size(), expected.size());
    for (const auto& tensor : header.tensors) {
      EXPECT_EQ(read_bytes(path, tensor.offset, tensor.bytes), expected.at(tensor.entry.name))
          << tensor.entry.name << " with " << size << " ranks";
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
    std::filesystem::remove(path);
  }
}

/// One run is about to put its file in its place when another saves there from begin to end.
TEST(Saving, Fault155_OfTwoSavesToOnePathTheLastStaysWhole) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path("model.safetensors");
  directory.write("model.safetensors.partial", "the user's");
  std::string first, second;
  run_threads(1, [&](World world) {
    nn::Linear model(3, 3), another(3, 3);
    const Sharded one = fully_shard(model, world, {.debug = {.print_promise = false}});
    const Sharded other = fully_shard(another, world, {.debug = {.print_promise = false}});
    checkpoint::save_safetensors(one, path);
    first = bytes_of_file(path);
    checkpoint::detail::save_weights(one, path, {}, {}, [&](const auto& put) {
      checkpoint::save_safetensors(other, path);
      second = bytes_of_file(path);
      put();
    });
  });
  EXPECT_NE(first, second);
  EXPECT_EQ(bytes_of_file(path), first);
  EXPECT_EQ(bytes_of_file(path + ".partial"), "the user's");
}

TEST(Saving, AnErrorOfOneRankIsThrownOnAll) {
  run_threads(3, [](World world) {
    nn::Linear model(3, 3);
    Sharded sharded = fully_shard(model, world, {.debug = {.print_promise = false}});
    try {
      checkpoint::save_safetensors(sharded, "/proc/nowhere/model.safetensors");
      ADD_FAILURE() << "saved into /proc";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("/proc/nowhere"));
    }
  });
}

}  // namespace
