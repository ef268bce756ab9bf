// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/strangers.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/touch/backward.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::engine {

namespace {

/// Inputs that want a gradient may be of a new shape in each step.
constexpr std::size_t kMostKinds = 8;

}  // namespace

void Strangers::begin() {
  first_task_ = last_task_ = -1;
  seen_.clear();
}

void Strangers::look() {
  const int task = current_graph_task();
  if (task < 0 || task == first_task_ || task == last_task_) {
    return;
  }
  last_task_ = task;
  first_task_ = first_task_ < 0 ? task : std::min(first_task_, task);
  std::vector<at::Tensor> leaves;
  append_plain_leaves(leaves);
  const bool is_inner = !leaves.empty() && is_inner_backward();
  for (at::Tensor& leaf : leaves) {
    seen_.push_back({.leaf = std::move(leaf), .is_inner = is_inner});
  }
}

bool Strangers::was_there_before(const at::Tensor& leaf) const {
  return std::ranges::any_of(before_, [&](const Weak& one) {
    return one._unsafe_get_target() == leaf.unsafeGetTensorImpl();
  });
}

bool Strangers::is_of_new_kind(const at::Tensor& stranger) {
  Kind kind{.sizes = stranger.sizes().vec(), .dtype = stranger.scalar_type()};
  if (told_.size() == kMostKinds || std::ranges::find(told_, kind) != told_.end()) {
    return false;
  }
  told_.push_back(std::move(kind));
  return true;
}

void Strangers::end(const ModuleLayout& layout, std::span<const ModuleLayout::Index> left_out,
                    bool tells) {
  std::ostringstream text;
  std::vector<Weak> now;
  for (const Seen& seen : std::exchange(seen_, {})) {
    const at::Tensor& leaf = seen.leaf;
    if (std::ranges::any_of(ignored_, [&](const at::Tensor& one) { return one.is_same(leaf); })) {
      continue;
    }
    now.emplace_back(leaf.getIntrusivePtr());
    for (const ModuleLayout::Index& index : left_out) {
      const Parameter& parameter = layout.at(index.unit).at(index.parameter);
      FSDP_CHECK(
          leaf.sizes() != at::IntArrayRef(parameter.sizes), ErrorCode::kInvalidArgument,
          "[backward] no operator of this step took \"", parameter.name,
          "\", but the gradient of another tensor of its shape, ", leaf.sizes(),
          ", was computed, which is in no shard: each rank has its own, and no checkpoint has "
          "it. Was a tensor or a module assigned to a member? Use register_parameter(), "
          "register_module() or replace_module() before fully_shard(), and tie_weights() to "
          "share a weight");
    }
    const bool is_for_sure = !seen.is_inner && (is_first_ || !left_out.empty());
    if ((is_for_sure || was_there_before(leaf)) && is_of_new_kind(leaf)) {
      text << (text.tellp() > 0 ? ", " : "") << c10::toString(leaf.scalar_type()) << " "
           << leaf.sizes();
    }
  }
  before_ = std::move(now);
  is_first_ = false;
  if (text.tellp() == 0 || !tells) {
    return;
  }
  base::log(base::LogLevel::kWarn,
            "a tensor that requires grad takes part in the loss and is in no shard: ", text.str(),
            told_.size() == kMostKinds ? " (others are not told of)" : "",
            ": its gradient is each rank's own, and no checkpoint has it. A weight is to be "
            "registered before fully_shard(); an input may be so");
}

}  // namespace fsdp::engine
