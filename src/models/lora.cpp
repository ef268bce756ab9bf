// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/lora.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/models/projection.hpp"
#include "models/architecture.hpp"

namespace fsdp::models {
namespace {

bool fits(const std::string& path, const std::string& target) {
  return path == target || path.ends_with("." + target);
}

/// "model.layers.0.self_attn.q_proj" -> "q_proj".
std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::int64_t add_adapters(LanguageModel& model, const format::LoRAConfig& lora) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
  std::set<std::string> unused(lora.targets.begin(), lora.targets.end()), known;
  std::int64_t count = 0;
  for (const auto& module : model.named_modules()) {
    auto* projection = dynamic_cast<AdaptableImpl*>(module.value().get());
    if (projection == nullptr) {
      continue;
    }
    known.insert(last_part(module.key()));
    bool is_target = false;
    for (const std::string& target : lora.targets) {
      if (fits(module.key(), target)) {
        unused.erase(target);
        is_target = true;
      }
    }
    if (is_target) {
      projection->add_adapter(lora.rank, lora.alpha);
      ++count;
    }
  }
  const std::string names = base::list_text(known);
  FSDP_CHECK(unused.empty(), ErrorCode::kInvalidArgument, "LoRA: the model has no projection '",
             *unused.begin(), "'; it has ", names);
  FSDP_CHECK(count > 0, ErrorCode::kInvalidArgument, "LoRA: there is no target; the model has ",
             names);
  return count;
}

bool is_adapter(std::string_view parameter) {
  return parameter.find(".lora_A.") != std::string_view::npos ||
         parameter.find(".lora_B.") != std::string_view::npos;
}

std::string peft_name(const ModelConfig& config, const std::string& parameter) {
  return format::kAdapterPrefix + published_name(config, parameter);
}

std::string parameter_of_peft(const ModelConfig& config, const std::string& stored) {
  const std::string prefix = format::kAdapterPrefix;
  if (!stored.starts_with(prefix)) {
    return stored;
  }
  return parameter_of(config, stored.substr(prefix.size())).value_or(stored);
}

std::string adapter_config_json(const ModelConfig& config, const format::LoRAConfig& lora,
                                const std::string& base) {
  format::LoRAConfig written = lora;
  written.base = base;
  written.is_transposed = detail::architecture_of(config).is_transposed;
  return format::to_json(written);
}

}  // namespace fsdp::models
