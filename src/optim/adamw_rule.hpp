// SPDX-License-Identifier: Apache-2.0
/// AdamW's rule, which Muon applies to what is no matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "fsdp/optim/adamw.hpp"
#include "optim/hyper_parameters.hpp"

namespace fsdp::optim {

void check(const AdamWOptions& options);
std::span<const Field<AdamWOptions>> adamw_fields();
/// One pass over memory. Under OwnShards.
void adamw_update(const at::Tensor& shard, const at::Tensor& grad, const at::Tensor& exp_avg,
                  const at::Tensor& exp_avg_sq, std::int64_t step, const AdamWOptions& options);

}  // namespace fsdp::optim
