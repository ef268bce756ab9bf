// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/gpt_config.hpp"

#include <array>
#include <limits>
#include <sstream>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "models/parameter_limit.hpp"

namespace fsdp::models {
namespace {

struct Preset {
  const char* name;
  GPTConfig config;
};

const std::array<Preset, 6>& presets() {
  static const std::array<Preset, 6> kPresets = {{
      {"tiny", {.width = 32, .layers = 2, .heads = 2, .context = 32}},
      {"default", {}},
      {"gpt2", {.vocab = 50257, .width = 768, .layers = 12, .heads = 12, .context = 1024}},
      {"gpt2-medium", {.vocab = 50257, .width = 1024, .layers = 24, .heads = 16, .context = 1024}},
      {"gpt2-large", {.vocab = 50257, .width = 1280, .layers = 36, .heads = 20, .context = 1024}},
      {"gpt2-xl", {.vocab = 50257, .width = 1600, .layers = 48, .heads = 25, .context = 1024}},
  }};
  return kPresets;
}

/// In std::int64_t for a valid configuration, in double for one that may be too large.
template <class Number>
Number count(const GPTConfig& config) {
  const auto width = static_cast<Number>(config.width);
  const auto inner = static_cast<Number>(config.effective_inner());
  const auto vocab = static_cast<Number>(config.vocab);
  const Number attention = 4 * width * width + 4 * width;
  const Number mlp = 2 * width * inner + inner + width;
  const Number block = attention + mlp + 4 * width;  // two LayerNorms
  const Number embeddings = (vocab + static_cast<Number>(config.context)) * width;
  return embeddings + static_cast<Number>(config.layers) * block + 2 * width +
         (config.tied ? 0 : vocab * width);
}

}  // namespace

void validate(const GPTConfig& config) {
  std::ostringstream problems;
  const auto check = [&](bool good, auto&&... parts) {
    if (!good) {
      problems << (problems.tellp() > 0 ? "; " : "");
      (problems << ... << parts);
    }
  };
  // Every product of two sizes stays far inside int64.
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  const auto in_range = [&](const char* name, std::int64_t value) {
    check(value >= 1 && value <= kMost, name, " is ", value, ", must be 1 to ", kMost);
    return value >= 1;
  };
  in_range("vocab", config.vocab);
  in_range("layers", config.layers);
  in_range("context", config.context);
  const bool width = in_range("width", config.width);
  const bool heads = in_range("heads", config.heads);
  if (width && heads) {
    check(config.width % config.heads == 0, config.heads, " heads do not divide the width ",
          config.width);
  }
  check(config.inner >= 0 && config.inner <= kMost, "inner is ", config.inner, ", must be 0 to ",
        kMost);
  check(config.norm_eps > 0, "norm_eps is ", config.norm_eps, ", must be positive");
  check(config.dropout >= 0.0 && config.dropout < 1.0, "dropout is ", config.dropout,
        ", must be at least 0 and below 1");
  FSDP_CHECK(problems.tellp() == 0, ErrorCode::kInvalidArgument, "model: ", problems.str());
  check_parameter_count(count<double>(config));
}

std::int64_t parameter_count(const GPTConfig& config) { return count<std::int64_t>(config); }

GPTConfig preset(const std::string& name) {
  std::string names;
  for (const Preset& candidate : presets()) {
    if (candidate.name == name) {
      return candidate.config;
    }
    base::append_to_list(names, candidate.name);
  }
  fail(ErrorCode::kInvalidArgument, "there is no preset '", name, "'; there are ", names);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& candidate : presets()) {
    names.emplace_back(candidate.name);
  }
  return names;
}

}  // namespace fsdp::models
