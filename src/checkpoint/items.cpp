// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/items.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <utility>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::checkpoint::detail {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kFloat, "F32"},          {at::kDouble, "F64"},       {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},      {at::kLong, "I64"},         {at::kInt, "I32"},
    {at::kShort, "I16"},          {at::kChar, "I8"},          {at::kByte, "U8"},
    {at::kBool, "BOOL"},          {at::kUInt16, "U16"},       {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},         {at::kComplexFloat, "C64"}, {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"}};

Item item_of(const NamedShard& parameter) {
  return {.section = archive::Section::kModel,
          .name = parameter.name,
          .other_names = parameter.aliases,
          .shape = parameter.sizes,
          .strides = parameter.parameter.strides().vec(),
          .holding = parameter.parameter.is_contiguous() ? Holding::kSlice : Holding::kPermuted,
          .values = parameter.shard,
          .begin = parameter.begin,
          .answered_begin = parameter.answered_begin,
          .answered_numel = parameter.answered_numel};
}

}  // namespace

std::string state_name(const StateShard& shard) { return shard.parameter + "." + shard.state; }

std::string dtype_name(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& [known, name] : kDtypes) {
    if (known == dtype) {
      return name;
    }
  }
  fail(ErrorCode::kUnsupported, "\"", tensor, "\" is ", c10::toString(dtype),
       ", which safetensors files do not know");
}

at::ScalarType dtype_of(const std::string& name, const std::string& tensor) {
  for (const auto& [dtype, known] : kDtypes) {
    if (name == known) {
      return dtype;
    }
  }
  fail(ErrorCode::kUnsupported, "\"", tensor, "\" is stored as ", name,
       ", which LibTorch has no tensors of here");
}

std::vector<Item> items_of(const Sharded& sharded, const OptimizerState* optimizer) {
  std::vector<Item> items;
  std::map<std::string, std::size_t> place;
  for (const NamedShard& parameter : sharded.named_parameters()) {
    place[parameter.name] = items.size();
    items.push_back(item_of(parameter));
  }
  for (const NamedBuffer& buffer : sharded.named_buffers()) {
    items.push_back({.name = buffer.name,
                     .shape = buffer.buffer.sizes().vec(),
                     .holding = Holding::kWhole,
                     .values = buffer.buffer});
  }
  if (optimizer == nullptr) {
    return items;
  }
  for (const StateShard& shard : optimizer->shards()) {
    Item item = items[place.at(shard.parameter)];
    FSDP_CHECK(shard.values.numel() == item.values.numel(), ErrorCode::kInvalidArgument,
               "the optimizer's ", shard.state, " of \"", shard.parameter, "\" has ",
               shard.values.numel(), " elements, its shard has ", item.values.numel());
    item.section = archive::Section::kOptimizer;
    item.name = state_name(shard);
    for (std::string& name : item.other_names) {
      name += "." + shard.state;
    }
    item.values = shard.values;
    items.push_back(std::move(item));
  }
  return items;
}

at::Tensor assemble(const World& world, const Item& item) {
  struct Range {
    std::int64_t begin;
    std::int64_t numel;
  };
  const auto label = comm::Label{.name = "checkpoint: " + item.name};
  const auto ranges = comm::gather_values(
      world.job(), Range{item.begin + item.answered_begin, item.answered_numel}, label.name);
  std::int64_t numel = archive::numel(item.shape);
  at::Tensor flat = at::empty({numel}, item.values.options());
  for (int rank = 0; rank < world.size(); ++rank) {
    const Range& range = ranges[static_cast<std::size_t>(rank)];
    const at::Tensor part = flat.narrow(0, range.begin, range.numel);
    if (rank == world.rank()) {
      part.copy_(item.answered());
    }
    world.transport().broadcast(part, rank, label)->wait();
  }
  return flat.as_strided(item.shape, item.strides).contiguous();
}

}  // namespace fsdp::checkpoint::detail
