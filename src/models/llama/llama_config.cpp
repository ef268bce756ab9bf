// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/llama_config.hpp"

#include <cmath>
#include <numbers>
#include <sstream>

#include "fsdp/base/error.hpp"
#include "models/parameter_limit.hpp"

namespace fsdp::models {
namespace {

/// Collects what is wrong, so that a person sees all of it at once.
class Problems {
 public:
  template <class... Parts>
  void check(bool good, const Parts&... parts) {
    if (!good) {
      text_ << (text_.tellp() > 0 ? "; " : "");
      (text_ << ... << parts);
    }
  }
  void raise_if_any() {
    FSDP_CHECK(text_.tellp() == 0, ErrorCode::kInvalidArgument, "model: ", text_.str());
  }

 private:
  std::ostringstream text_;
};

void check_rope(const RopeConfig& rope, Problems& problems) {
  problems.check(std::isfinite(rope.theta) && rope.theta > 1, "rope theta is ", rope.theta,
                 ", must be above 1");
  problems.check(std::isfinite(rope.factor) && rope.factor >= 1, "rope factor is ", rope.factor,
                 ", must be at least 1");
  if (rope.scaling == RopeScaling::kLlama3) {
    problems.check(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor,
                   "rope low_freq_factor ", rope.low_freq_factor,
                   " must be positive and below high_freq_factor ", rope.high_freq_factor);
    problems.check(rope.original_context >= 1, "rope original_max_position_embeddings is ",
                   rope.original_context, ", must be at least 1");
  }
}

/// One frequency of `kLlama3`. A wave that fits the first training's
/// context `high_freq_factor` times was learnt and stays; one longer than a `low_freq_factor`th of
/// it is stretched by `factor`; between both the result goes linearly from one to the other.
float llama3_frequency(float frequency, const RopeConfig& rope) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto context = static_cast<float>(rope.original_context);
  const float wave_length = 2 * std::numbers::pi_v<float> / frequency;
  if (wave_length < context / high) {
    return frequency;
  }
  if (wave_length > context / low) {
    return frequency / factor;
  }
  const float smooth = (context / wave_length - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

bool has_input_bias(const LlamaConfig& config) {
  return config.attention_bias || config.input_bias;
}

/// In std::int64_t for a valid configuration, in double for one that may be too large.
template <class Number>
Number count(const LlamaConfig& config) {
  const auto width = static_cast<Number>(config.width);
  const auto inner = static_cast<Number>(config.inner);
  const auto head_width = static_cast<Number>(config.effective_head_width());
  const Number queries = static_cast<Number>(config.heads) * head_width;
  const Number keys = static_cast<Number>(config.kv_heads) * head_width;
  const Number attention =
      2 * width * queries + 2 * width * keys + (has_input_bias(config) ? queries + 2 * keys : 0) +
      (config.attention_bias ? width : 0) + (config.head_norms ? 2 * head_width : 0);
  const Number mlp = 3 * width * inner + (config.mlp_bias ? 2 * inner + width : 0);
  const Number block = attention + mlp + 2 * width;  // two RMSNorms
  return static_cast<Number>(config.vocab) * width * (config.tied ? 1 : 2) +
         static_cast<Number>(config.layers) * block + width;
}

}  // namespace

const char* to_string(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
    case RopeScaling::kDefault: break;
  }
  return "default";
}

void validate(const LlamaConfig& config) {
  Problems problems;
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const auto in_range = [&](const char* name, std::int64_t value) {
    problems.check(value >= 1 && value <= kMost, name, " is ", value, ", must be 1 to ", kMost);
    return value >= 1;
  };
  in_range("vocab", config.vocab);
  in_range("layers", config.layers);
  in_range("context", config.context);
  in_range("inner", config.inner);
  const bool width = in_range("width", config.width);
  const bool heads = in_range("heads", config.heads);
  const bool kv_heads = in_range("kv_heads", config.kv_heads);
  if (heads && kv_heads) {
    problems.check(config.heads % config.kv_heads == 0, config.kv_heads,
                   " key and value heads do not divide ", config.heads, " heads");
  }
  if (width && heads && config.head_width == 0) {
    problems.check(config.width % config.heads == 0, config.heads,
                   " heads do not divide the width ", config.width);
  }
  problems.check(config.head_width >= 0 && config.head_width <= kMost, "head_width is ",
                 config.head_width, ", must be 0 to ", kMost);
  if (width && heads) {
    problems.check(config.effective_head_width() % 2 == 0, "a head of ",
                   config.effective_head_width(),
                   " features cannot be rotated: their number must be even");
  }
  problems.check(config.norm_eps > 0, "norm_eps is ", config.norm_eps, ", must be positive");
  problems.check(config.dropout >= 0.0 && config.dropout < 1.0, "dropout is ", config.dropout,
                 ", must be at least 0 and below 1");
  problems.check(config.window >= 0, "window is ", config.window, ", must be 0 or positive");
  problems.check(config.first_windowed >= 0, "the first block with a window is ",
                 config.first_windowed, ", must be 0 or positive");
  check_rope(config.rope, problems);
  problems.raise_if_any();
  check_parameter_count(count<double>(config));
}

std::int64_t parameter_count(const LlamaConfig& config) { return count<std::int64_t>(config); }

std::vector<float> rope_frequencies(const LlamaConfig& config) {
  const std::int64_t width = config.effective_head_width();
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < width; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(width);
    const float frequency = 1.0F / std::pow(static_cast<float>(config.rope.theta), exponent);
    switch (config.rope.scaling) {
      case RopeScaling::kDefault: frequencies.push_back(frequency); break;
      case RopeScaling::kLinear:
        frequencies.push_back(frequency / static_cast<float>(config.rope.factor));
        break;
      case RopeScaling::kLlama3:
        frequencies.push_back(llama3_frequency(frequency, config.rope));
        break;
    }
  }
  return frequencies;
}

}  // namespace fsdp::models
