// SPDX-License-Identifier: Apache-2.0
/// What lies behind a WeightSource: tensors, wherever and however they are stored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/archive/index.hpp"
#include "fsdp/archive/reader.hpp"

namespace fsdp::archive::detail {

/// Reads tensors that somebody has listed.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  /// `bytes` bytes of the tensor as it is listed, from its byte `tensor_offset` on.
  /// @throws Error kInvalidArgument for a range outside of it; kIo, kCorrupt
  virtual void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
                    void* dst) const = 0;
  /// Compares the sum of a tensor's bytes with the one that was stored with it, where one was.
  /// @throws Error kIo, kCorrupt
  virtual void check_sum(const Tensor& /*tensor*/) const {}
  /// Asks the system to fetch a range that read() takes soon. A hint.
  virtual void will_read(const Tensor& tensor, std::int64_t tensor_offset,
                         std::int64_t bytes) const = 0;
};

struct TensorSource {
  std::vector<Tensor> tensors = {};
  std::map<std::string, std::string> aliases = {};
  /// Files beside the weights that belong to the model, by name: config.json, its tokenizer.
  std::map<std::string, std::string> documents = {};
  std::unique_ptr<TensorReader> reader = {};
};

/// The weights of a GGUF file of the architecture "llama", as Hugging Face names and lays them out,
/// in float32. @throws Error as format::read_gguf_header(); kUnsupported naming metadata or tensors
/// that Hugging Face's Llama has no place for
TensorSource open_gguf(const std::string& path);

/// `base` with the adapters of a directory that PEFT wrote added to its weights; `base` is what
/// WeightSource's constructor takes. @throws Error kMismatch naming an adapter that fits no weight
TensorSource open_adapted(const std::string& base, const std::string& adapter, SumCheck sums);

/// The files of TensorSource::documents that are in a directory.
std::map<std::string, std::string> read_documents(const std::string& directory);

}  // namespace fsdp::archive::detail
