// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/finite.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "comm/on_host.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp {

namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

/// Of this rank: position in the module's order, kNone without one.
std::int64_t first_bad(const std::vector<NamedShard>& shards) {
  std::vector<at::Tensor> are_finite;
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor& grad = shards[i].shard.grad();
    if (grad.defined() && grad.numel() > 0) {
      are_finite.push_back(grad.isfinite().all());
      positions.push_back(static_cast<std::int64_t>(i));
    }
  }
  const std::vector<double> finite = comm::numbers_on_host(are_finite);
  const auto bad = std::ranges::find(finite, 0.0);
  return bad == finite.end() ? kNone : positions[static_cast<std::size_t>(bad - finite.begin())];
}

}  // namespace

std::optional<BadGradient> find_bad_gradient(const Sharded& sharded) {
  const std::vector<NamedShard> shards = sharded.named_parameters();
  const OwnShards own;
  struct Finding {
    std::int64_t stored;  ///< the first in this rank's shards
    std::int64_t made;    ///< the first that it has made
  };
  const std::int64_t made = sharded.shard_access()->first_bad_contribution();
  const auto findings =
      comm::gather_values(sharded.world().job(),
                          Finding{first_bad(shards), made < 0 ? kNone : made}, "find_bad_gradient");
  const auto stored = std::ranges::min_element(findings, {}, &Finding::stored);
  const auto maker = std::ranges::min_element(findings, {}, &Finding::made);
  if (stored->stored == kNone) {
    return std::nullopt;
  }
  return BadGradient{
      .parameter = shards[static_cast<std::size_t>(stored->stored)].name,
      .rank = static_cast<int>(stored - findings.begin()),
      .made_by = maker->made == stored->stored ? static_cast<int>(maker - findings.begin()) : -1};
}

namespace {

std::string text_of(const BadGradient& bad) {
  const std::string text = "the gradient of \"" + bad.parameter + "\" is not finite";
  return bad.made_by < 0 ? text + " on rank " + std::to_string(bad.rank) +
                               ", which stores that part, though no rank made it so: the sum over "
                               "ranks overflowed, or it was written since"
                         : text + ": rank " + std::to_string(bad.made_by) +
                               " made it (look at its data), rank " + std::to_string(bad.rank) +
                               " stores that part";
}

}  // namespace

GradientCheck skip_step(const Sharded& sharded, double norm) {
  GradientCheck check{.norm = norm};
  check.bad = find_bad_gradient(sharded);
  const auto access = sharded.shard_access();
  check.is_skipped = access->skips_non_finite();
  if (sharded.world().rank() == 0) {
    base::log(base::LogLevel::kWarn, "the gradient norm is ", norm,
              check.bad.has_value() ? ": " + text_of(*check.bad)
                                    : std::string(", though each gradient is finite"),
              check.is_skipped ? ". All ranks skip this step" : "");
  }
  if (check.is_skipped) {
    access->zero_grad();
  }
  return check;
}

}  // namespace fsdp
