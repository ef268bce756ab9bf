// SPDX-License-Identifier: Apache-2.0
/// What users have called with reduced gradients.
#include <utility>

#include "engine/executor/engine.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

NamedShard Engine::named_shard(int unit, const Parameter& parameter) {
  return {.name = parameter.name,
          .parameter = parameter.tensor,
          .shard = parameter.shard,
          .begin = parameter.piece.parameter_offset,
          .sizes = parameter.sizes,
          .aliases = parameter.aliases,
          .unit = unit,
          .answered_begin = parameter.answered.shard_offset,
          .answered_numel = parameter.answered.numel};
}

std::uint64_t Engine::add_reduced_hook(ReducedHook hook) {
  std::lock_guard lock(mutex_);
  FSDP_CHECK(hook != nullptr, ErrorCode::kInvalidArgument, "[on_reduced] the hook is empty");
  reduced_hooks_.emplace(++last_hook_, std::move(hook));
  return last_hook_;
}

void Engine::remove_reduced_hook(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  FSDP_CHECK(reduced_hooks_.erase(id) == 1, ErrorCode::kNotFound, "[remove_on_reduced] no hook is ",
             id, ": was it removed before?");
}

/// All ranks have ended their reductions, so a hook that throws leaves nobody waiting in one; what
/// comes next meets the failure. Not through together(): hooks' operators are to be checked as all
/// operators on shards are.
void Engine::run_reduced_hooks() {
  if (reduced_hooks_.empty()) {
    return;
  }
  const auto hooks = reduced_hooks_;  // a hook may remove itself
  try {
    for (const auto& [unit, parameter] : ordered_parameters()) {
      for (const auto& [id, hook] : hooks) {
        if (parameter->was_reduced) {
          hook(named_shard(unit, *parameter), parameter->shard.grad());
        }
      }
    }
  } catch (...) {
    record_failure();
    std::rethrow_exception(failure_);
  }
}

}  // namespace fsdp::engine
