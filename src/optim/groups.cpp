// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/groups.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "base/name_pattern.hpp"
#include "base/near_names.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::optim {
namespace {

bool fits(const NamedShard& parameter, const std::string& pattern) {
  return matches(pattern, parameter.name) ||
         std::any_of(parameter.aliases.begin(), parameter.aliases.end(),
                     [&](const std::string& alias) { return matches(pattern, alias); });
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return base::matches(pattern, name);
}

std::vector<int> assign_groups(const Sharded& sharded,
                               const std::vector<std::vector<std::string>>& patterns) {
  const std::vector<NamedShard> parameters = sharded.named_parameters();
  std::vector<int> groups(parameters.size(), -1);
  for (std::size_t group = 0; group < patterns.size(); ++group) {
    for (const std::string& pattern : patterns[group]) {
      bool is_found = false;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const bool is_member = fits(parameters[i], pattern);
        is_found = is_found || is_member;
        if (is_member && groups[i] < 0) {
          groups[i] = static_cast<int>(group);
        }
      }
      if (!is_found) {
        std::vector<std::string> names;
        for (const NamedShard& parameter : parameters) {
          names.push_back(parameter.name);
        }
        fail(ErrorCode::kNotFound, "[parameter groups] \"", pattern, "\" fits none of ",
             parameters.size(), " parameters, such as ", base::near_names_text(pattern, names),
             "; names are those of named_parameters(), * stands for any characters");
      }
    }
  }
  return groups;
}

std::vector<at::Tensor> parameters_matching(const Sharded& sharded,
                                            const std::vector<std::string>& patterns) {
  const std::vector<at::Tensor> shards = sharded.parameters();
  const std::vector<int> groups = assign_groups(sharded, {patterns});
  std::vector<at::Tensor> found;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (groups[i] == 0) {
      found.push_back(shards[i]);
    }
  }
  return found;
}

torch::optim::OptimizerParamGroup param_group(
    const Sharded& sharded, const std::vector<std::string>& patterns,
    std::unique_ptr<torch::optim::OptimizerOptions> options) {
  return {parameters_matching(sharded, patterns), std::move(options)};
}

}  // namespace fsdp::optim
