// SPDX-License-Identifier: Apache-2.0
/// Tensors of a GGUF file under Hugging Face's names and in their layout.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "archive/file.hpp"
#include "archive/gguf_documents.hpp"
#include "archive/read_tensor.hpp"
#include "archive/tensor_source.hpp"
#include "format/gguf.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {
namespace {

using format::GgufTensor;

constexpr std::int64_t kFloatBytes = 4;

/// Hugging Face's name of a tensor, and by how many heads its rows are ordered otherwise.
struct Renamed {
  std::string name;
  std::int64_t permuted_heads = 0;
};

std::optional<Renamed> rename(const std::string& name, const GgufHeads& heads) {
  static const std::map<std::string, std::string> kWhole = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string> kInBlock = {
      {"attn_norm.weight", "input_layernorm.weight"},
      {"ffn_norm.weight", "post_attention_layernorm.weight"},
      {"attn_q.weight", "self_attn.q_proj.weight"},
      {"attn_k.weight", "self_attn.k_proj.weight"},
      {"attn_v.weight", "self_attn.v_proj.weight"},
      {"attn_output.weight", "self_attn.o_proj.weight"},
      {"ffn_gate.weight", "mlp.gate_proj.weight"},
      {"ffn_up.weight", "mlp.up_proj.weight"},
      {"ffn_down.weight", "mlp.down_proj.weight"}};
  if (const auto found = kWhole.find(name); found != kWhole.end()) {
    return Renamed{found->second};
  }
  const std::size_t dot = name.find('.', 4);
  if (!name.starts_with("blk.") || dot == std::string::npos) {
    return std::nullopt;
  }
  const std::string number = name.substr(4, dot - 4), rest = name.substr(dot + 1);
  const auto found = kInBlock.find(rest);
  if (found == kInBlock.end() || number.empty() ||
      number.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return Renamed{.name = "model.layers." + number + "." + found->second,
                 .permuted_heads = rest == "attn_q.weight"   ? heads.heads
                                   : rest == "attn_k.weight" ? heads.kv_heads
                                                             : 0};
}

/// A tensor as it lies in the file.
struct Stored {
  GgufTensor tensor;
  std::int64_t permuted_heads = 0;
};

class GgufReader : public TensorReader {
 public:
  GgufReader(const std::string& path, std::map<std::string, Stored> stored)
      : file_(path, OpenMode::kRead), stored_(std::move(stored)) {}

  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
            void* dst) const override {
    check_range(tensor, tensor_offset, bytes);
    FSDP_CHECK(tensor_offset % kFloatBytes == 0 && bytes % kFloatBytes == 0,
               ErrorCode::kInvalidArgument, "bytes ", tensor_offset, " to ", tensor_offset + bytes,
               " of '", tensor.name, "' are no whole elements");
    const Stored& stored = stored_.at(tensor.name);
    if (bytes == 0) {
      return;  // `dst` may be null then
    }
    std::vector<float> values(static_cast<std::size_t>(bytes / kFloatBytes));
    read_elements(stored, tensor_offset / kFloatBytes, std::ssize(values), values.data());
    std::memcpy(dst, values.data(), static_cast<std::size_t>(bytes));
  }

  void will_read(const Tensor& tensor, std::int64_t tensor_offset,
                 std::int64_t bytes) const override {
    const GgufTensor& stored = stored_.at(tensor.name).tensor;
    const format::GgufBlock block = format::block_of(stored.type);
    const std::int64_t first = tensor_offset / kFloatBytes / block.elements;
    file_.will_read(bytes / kFloatBytes / block.elements * block.bytes,
                    stored.offset + first * block.bytes);
  }

 private:
  /// Rows of a permuted tensor lie elsewhere: one read each.
  void read_elements(const Stored& stored, std::int64_t begin, std::int64_t count,
                     float* dst) const {
    if (stored.permuted_heads == 0) {
      read_straight(stored.tensor, begin, count, dst);
      return;
    }
    const std::int64_t columns = stored.tensor.shape.back();
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = (begin + done) / columns, column = (begin + done) % columns;
      const std::int64_t part = std::min(count - done, columns - column);
      read_straight(stored.tensor, stored_row(stored, row) * columns + column, part, dst + done);
      done += part;
    }
  }

  /// llama.cpp pairs neighbouring rows for rotation, Hugging Face row i with row i + half a head:
  /// row (part, i) of a head there is row (i, part) in the file.
  static std::int64_t stored_row(const Stored& stored, std::int64_t row) {
    const std::int64_t head_rows = stored.tensor.shape.front() / stored.permuted_heads;
    const std::int64_t head = row / head_rows, in_head = row % head_rows, half = head_rows / 2;
    return head * head_rows + in_head % half * 2 + in_head / half;
  }

  void read_straight(const GgufTensor& tensor, std::int64_t begin, std::int64_t count,
                     float* dst) const {
    if (count == 0) {
      return;
    }
    const format::GgufBlock block = format::block_of(tensor.type);
    const std::int64_t first = begin / block.elements;
    const std::int64_t blocks = (begin + count - 1) / block.elements - first + 1;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(blocks * block.bytes));
    file_.read(bytes.data(), std::ssize(bytes), tensor.offset + first * block.bytes);
    std::vector<float> values(static_cast<std::size_t>(blocks * block.elements));
    format::decode_blocks(tensor.type, bytes.data(), blocks, values.data());
    std::copy_n(values.begin() + (begin - first * block.elements), count, dst);
  }

  File file_;
  std::map<std::string, Stored> stored_;
};

}  // namespace

TensorSource open_gguf(const std::string& path) {
  const format::GgufHeader header = format::read_gguf_header(path);
  const GgufHeads heads = check_gguf_metadata(path, header);
  TensorSource source;
  std::map<std::string, Stored> stored;
  for (const GgufTensor& tensor : header.tensors) {
    const auto renamed = rename(tensor.name, heads);
    FSDP_CHECK(renamed, ErrorCode::kUnsupported, "'", path, "' holds the tensor '", tensor.name,
               "', for which Hugging Face's Llama has no place");
    const std::int64_t permuted = renamed->permuted_heads;
    FSDP_CHECK(
        permuted == 0 || (tensor.shape.size() == 2 && tensor.shape.front() % (2 * permuted) == 0),
        ErrorCode::kCorrupt, "'", path, "': the rows of tensor '", tensor.name,
        "' are not those of ", permuted, " heads");
    const std::int64_t bytes = numel(tensor.shape) * kFloatBytes;
    source.tensors.push_back({.section = Section::kModel,
                              .name = renamed->name,
                              .dtype = "F32",
                              .shape = tensor.shape,
                              .file = std::filesystem::path(path).filename().string(),
                              .bytes = bytes});
    stored.emplace(renamed->name, Stored{.tensor = tensor, .permuted_heads = permuted});
  }
  source.documents = gguf_documents(path, header);
  source.reader = std::make_unique<GgufReader>(path, std::move(stored));
  return source;
}

}  // namespace fsdp::archive::detail
