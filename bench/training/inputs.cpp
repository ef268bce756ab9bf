// SPDX-License-Identifier: Apache-2.0
#include "training/inputs.hpp"

#include <torch/torch.h>

#include <fstream>
#include <ios>

#include "fsdp/base/error.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/format/safetensors.hpp"

namespace bench {
namespace {

void read_bytes(std::ifstream& file, const std::string& path, std::int64_t offset, void* data,
                std::int64_t bytes) {
  file.seekg(offset);
  file.read(static_cast<char*>(data), bytes);
  FSDP_CHECK(file.good(), fsdp::ErrorCode::kIo, "cannot read ", bytes, " bytes at ", offset, " of ",
             path);
}

}  // namespace

void write_inputs(const fsdp::models::GPTConfig& config, std::int64_t rows,
                  const std::string& weights, const std::string& tokens) {
  torch::manual_seed(1);
  fsdp::models::GPT model(config);
  const at::Tensor drawn =
      torch::randint(0, config.vocab, {rows, config.context + 1}, torch::kByte);
  std::ofstream file(tokens, std::ios::binary);
  file.write(static_cast<const char*>(drawn.const_data_ptr()), drawn.numel());
  FSDP_CHECK(file.good(), fsdp::ErrorCode::kIo, "cannot write ", tokens);
  const fsdp::Sharded sharded = fsdp::fully_shard(
      model, fsdp::init(), {.memory = {.moments = 0}, .debug = {.print_promise = false}});
  fsdp::checkpoint::save_safetensors(sharded, weights);
}

fsdp::models::GPT read_model(const fsdp::models::GPTConfig& config, const std::string& weights) {
  fsdp::models::GPT model(config);
  const auto parameters = model->named_parameters();
  torch::NoGradGuard no_grad;
  std::ifstream file(weights, std::ios::binary);
  for (const auto& stored : fsdp::format::read_safetensors_header(weights).tensors) {
    const at::Tensor* parameter = parameters.find(stored.entry.name);
    FSDP_CHECK(parameter != nullptr && stored.entry.dtype == "F32" &&
                   parameter->sizes() == at::IntArrayRef(stored.entry.shape),
               fsdp::ErrorCode::kMismatch, weights, " holds ", stored.entry.name,
               ", which this model lacks or has in another shape");
    read_bytes(file, weights, stored.offset, parameter->mutable_data_ptr(), stored.bytes);
  }
  return model;
}

Batch read_batch(const std::string& tokens, std::int64_t first, std::int64_t rows,
                 std::int64_t context) {
  at::Tensor bytes = torch::empty({rows, context + 1}, torch::kByte);
  std::ifstream file(tokens, std::ios::binary);
  read_bytes(file, tokens, first * (context + 1), bytes.mutable_data_ptr(), bytes.numel());
  const at::Tensor all = bytes.to(torch::kLong);
  return {.x = all.narrow(1, 0, context).contiguous(), .y = all.narrow(1, 1, context).contiguous()};
}

}  // namespace bench
