// SPDX-License-Identifier: Apache-2.0
/// What a GGUF file's metadata say, as the files that Hugging Face has for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "format/gguf.hpp"

namespace fsdp::archive::detail {

/// The numbers that the layout of the tensors depends on.
struct GgufHeads {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
};

/// @throws Error kUnsupported for another architecture than "llama", and naming all metadata that
/// would change the model and are not known; kCorrupt for one of a wrong type or without a
/// necessary one
GgufHeads check_gguf_metadata(const std::string& path, const format::GgufHeader& header);

/// config.json, and for the tokenizers that are known tokenizer.json, tokenizer_config.json,
/// vocab.json and merges.txt. Call it after the check.
std::map<std::string, std::string> gguf_documents(const std::string& path,
                                                  const format::GgufHeader& header);

}  // namespace fsdp::archive::detail
