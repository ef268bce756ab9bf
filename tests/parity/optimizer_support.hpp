// SPDX-License-Identifier: Apache-2.0
/// What tests of optimizers share.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using OwnFactory = std::function<std::unique_ptr<optim::FlatOptimizer>(const Sharded&)>;

template <class Optimizer, class Options>
OwnFactory own(Options options) {
  return
      [options](const Sharded& sharded) { return std::make_unique<Optimizer>(sharded, options); };
}

/// A subject's parameters, tied ones once.
inline Named named_parameters(const Subject& subject) {
  Named named;
  for (const auto& item : subject.module->named_parameters()) {
    const bool is_tied = std::any_of(named.begin(), named.end(), [&](const auto& known) {
      return known.second.is_same(item.value());
    });
    if (!is_tied) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

}  // namespace fsdp::test
