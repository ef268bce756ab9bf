// SPDX-License-Identifier: Apache-2.0
/// A project that uses the language models: their shapes and tokens.
#include <cstdio>

#include "fsdp/models/model_config.hpp"
#include "fsdp/tokens/tokenizer.hpp"

int main() {
  const auto shape = fsdp::models::model_preset("gpt2");
  const auto bytes = fsdp::tokens::load("bytes");
  std::printf("consumer: %lld parameters, %lld tokens\n",
              static_cast<long long>(fsdp::models::parameter_count(shape)),
              static_cast<long long>(bytes->vocab_size()));
  return bytes->vocab_size() == 256 ? 0 : 1;
}
