// SPDX-License-Identifier: Apache-2.0
/// A project that uses the language models: their shapes, tokens, and training's configuration.
#include <cstdio>

#include "fsdp/models/model_config.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "fsdp/train/config.hpp"

int main() {
  const auto shape = fsdp::models::model_preset("gpt2");
  const auto bytes = fsdp::tokens::load("bytes");
  const fsdp::train::TrainConfig config{.model = shape};
  std::printf("consumer: %lld parameters, %lld tokens, %lld steps\n",
              static_cast<long long>(fsdp::models::parameter_count(shape)),
              static_cast<long long>(bytes->vocab_size()), static_cast<long long>(config.steps));
  return bytes->vocab_size() == 256 ? 0 : 1;
}
