// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/generate.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "fsdp/base/error.hpp"

namespace fsdp::models {
namespace {

void check(const GenerateOptions& options, const std::vector<std::int64_t>& prompt,
           std::int64_t vocab) {
  FSDP_CHECK(!prompt.empty(), ErrorCode::kInvalidArgument, "generate: the prompt is empty");
  for (const std::int64_t token : prompt) {
    FSDP_CHECK(token >= 0 && token < vocab, ErrorCode::kInvalidArgument, "generate: token ", token,
               " is outside the vocabulary of ", vocab);
  }
  FSDP_CHECK(std::isfinite(options.temperature) && options.temperature >= 0,
             ErrorCode::kInvalidArgument, "generate: the temperature is ", options.temperature,
             ", must be 0 or positive");
  FSDP_CHECK(options.top_p > 0 && options.top_p <= 1, ErrorCode::kInvalidArgument,
             "generate: top_p is ", options.top_p, ", must be above 0 and at most 1");
  FSDP_CHECK(options.top_k >= 0 && options.tokens >= 0, ErrorCode::kInvalidArgument,
             "generate: top_k is ", options.top_k, " and tokens ", options.tokens,
             ", neither may be negative");
}

/// Leaves the fewest likeliest tokens whose probabilities reach `top_p`: one stays when those
/// before it do not reach it yet, so the likeliest always does.
at::Tensor keep_likeliest(const at::Tensor& probabilities, double top_p) {
  const auto [sorted, order] = probabilities.sort(/*dim=*/-1, /*descending=*/true);
  const at::Tensor before = sorted.cumsum(-1) - sorted;
  return torch::zeros_like(probabilities)
      .scatter(-1, order, sorted.masked_fill(before >= top_p, 0));
}

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
  at::Tensor probabilities = torch::softmax(scaled, 0);
  if (options.top_p < 1) {
    probabilities = keep_likeliest(probabilities, options.top_p);
  }
  return torch::multinomial(probabilities, 1, false, generator).item<std::int64_t>();
}

/// What follows a text, with the least work that its length allows.
class NextToken {
 public:
  NextToken(LanguageModel& model, const GenerateOptions& options)
      : model_(model), context_(model.model_sizes().context), device_(options.device) {
    if (options.use_cache) {
      cache_.emplace(context_);
    }
  }

  /// Logits [vocab] of the token after `text`, which only grows from call to call.
  at::Tensor logits(std::vector<std::int64_t>& text) {
    const auto length = static_cast<std::int64_t>(text.size());
    if (!cache_ || length > context_) {
      const std::int64_t visible = std::min(length, context_);
      return model_.forward(tail(text, visible))[0][visible - 1];
    }
    return model_.forward(tail(text, length - cache_->length()), *cache_)[0];
  }

 private:
  at::Tensor tail(std::vector<std::int64_t>& text, std::int64_t count) const {
    return torch::from_blob(text.data() + (std::ssize(text) - count), {1, count}, torch::kInt64)
        .to(device_, /*non_blocking=*/false, /*copy=*/true);
  }

  LanguageModel& model_;
  std::int64_t context_;
  c10::Device device_;
  std::optional<KeyValueCache> cache_;
};

}  // namespace

std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options) {
  check(options, prompt, model.model_sizes().vocab);
  torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<std::int64_t> text = std::move(prompt);
  const auto prompt_size = std::ssize(text);
  NextToken next(model, options);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    // Drawn on the host, by its generator: the same text on every device, up to rounding.
    std::int64_t token = draw(next.logits(text).to(torch::kCPU), options, generator);
    if (options.agree) {
      token = options.agree(token);
    }
    text.push_back(token);
    if (std::find(options.ends.begin(), options.ends.end(), token) != options.ends.end()) {
      break;
    }
  }
  model.train(was_training);
  return {text.begin() + prompt_size, text.end()};
}

}  // namespace fsdp::models
