// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "fsdp/base/error.hpp"
#include "fsdp/models/gpt.hpp"

namespace fsdp::models {
namespace {

std::int64_t draw(const at::Tensor& logits, const GenerateOptions& options,
                  const at::Generator& generator) {
  if (options.temperature <= 0) {
    return logits.argmax().item<std::int64_t>();
  }
  at::Tensor scaled = logits.to(torch::kDouble) / options.temperature;
  if (options.top_k > 0 && options.top_k < scaled.numel()) {
    const auto smallest_kept = std::get<0>(scaled.topk(options.top_k)).min();
    scaled = scaled.masked_fill(scaled < smallest_kept, -INFINITY);
  }
  return torch::multinomial(torch::softmax(scaled, 0), 1, false, generator).item<std::int64_t>();
}

}  // namespace

std::vector<std::int64_t> generate(GPT& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  const GPTConfig& config = model->config();
  FSDP_CHECK(!prompt.empty(), ErrorCode::kInvalidArgument, "generate: the prompt is empty");
  for (const std::int64_t token : prompt) {
    FSDP_CHECK(token >= 0 && token < config.vocab, ErrorCode::kInvalidArgument, "generate: token ",
               token, " is outside the vocabulary of ", config.vocab);
  }
  torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<std::int64_t> text = std::move(prompt);
  const auto prompt_size = static_cast<std::ptrdiff_t>(text.size());
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto length = static_cast<std::int64_t>(text.size());
    const std::int64_t visible = std::min(length, config.context);
    const auto window =
        torch::from_blob(text.data() + (length - visible), {1, visible}, torch::kInt64).clone();
    text.push_back(draw(model->forward(window)[0][visible - 1], options, generator));
  }
  model->train(was_training);
  return {text.begin() + prompt_size, text.end()};
}

}  // namespace fsdp::models
