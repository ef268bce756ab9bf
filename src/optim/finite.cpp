// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/finite.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "fsdp/base/log.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp {

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

bool is_finite(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.isfinite().all().item<bool>();
}

/// Of this rank: position in the module's order, kNone without one.
std::int64_t first_bad(const std::vector<NamedShard>& shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor& grad = shards[i].shard.grad();
    if (grad.defined() && !is_finite(grad)) {
      return static_cast<std::int64_t>(i);
    }
  }
  return kNone;
}

}  // namespace

std::optional<BadGradient> find_bad_gradient(const Sharded& sharded) {
  const std::vector<NamedShard> shards = sharded.named_parameters();
  const OwnShards own;
  const auto firsts =
      comm::gather_values(sharded.world().job(), first_bad(shards), "find_bad_gradient");
  const auto lowest = std::ranges::min_element(firsts);
  if (*lowest == kNone) {
    return std::nullopt;
  }
  return BadGradient{.parameter = shards[static_cast<std::size_t>(*lowest)].name,
                     .rank = static_cast<int>(lowest - firsts.begin())};
}

GradientCheck skip_step(const Sharded& sharded, double norm) {
  GradientCheck check{.norm = norm};
  check.bad = find_bad_gradient(sharded);
  const auto access = sharded.shard_access();
  check.is_skipped = access->skips_non_finite();
  if (sharded.world().rank() == 0) {
    base::log(base::LogLevel::kWarn, "the gradient norm is ", norm,
              check.bad.has_value()
                  ? ": the gradient of \"" + check.bad->parameter + "\" is not finite on rank " +
                        std::to_string(check.bad->rank)
                  : std::string(", though each gradient is finite"),
              check.is_skipped ? ". All ranks skip this step" : "");
  }
  if (check.is_skipped) {
    access->zero_grad();
  }
  return check;
}

}  // namespace fsdp
