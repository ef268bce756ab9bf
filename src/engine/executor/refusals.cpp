// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/refusals.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <string>

#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

std::string describe(const ModuleLayout& layout, const Hit& hit) {
  return "parameter \"" + layout.at(hit.unit).at(hit.parameter).name + "\" of unit \"" +
         layout.at(hit.unit).name + "\"";
}

}  // namespace

void refuse_mixing(const Unit& unit, const FlatParts& parts, std::int64_t begin, bool is_gradient,
                   const char* op) {
  std::string name = "unit \"" + unit.name + "\"";
  for (int i = 0; i < unit.layout->parameters(); ++i) {
    const at::Tensor& part = parts.part(i);
    if (part.storage_offset() == begin && part.numel() > 0) {
      name = "\"" + unit.at(i).name + "\", " + std::to_string(part.numel()) + " of " +
             std::to_string(unit.at(i).numel) + " elements";
    }
  }
  fail(
      ErrorCode::kInvalidArgument, "[touch] ", op, " mixes the elements of this rank's part of ",
      is_gradient ? "the gradient of " : "", name,
      ": each rank would get another result. To clip: fsdp::clip_grad_norm_(sharded, max_norm, p), "
      "to measure: fsdp::grad_norm(sharded, p). An optimizer that looks at a parameter as a whole "
      "(LAMB, Muon, LBFGS) cannot run on shards: fsdp::optim::Muon can, "
      "fsdp::optim::WholeTensors gathers, and so does sharded.full_parameters(). A clone() of the "
      "part is a plain tensor");
}

void refuse_grad_use(const ModuleLayout& layout, const Hit& hit, const char* op) {
  fail(ErrorCode::kInvalidArgument, "[touch] ", op, " takes the grad of the module's ",
       describe(layout, hit),
       ", but gradients live in shards: build the optimizer on sharded.parameters() and clip with "
       "fsdp::clip_grad_norm_(sharded, max_norm). An optimizer on module->parameters() would train "
       "nothing");
}

void check_touch(const ModuleLayout& layout, std::span<const Hit> hits, const char* op,
                 bool takes_writes) {
  for (const Hit& hit : hits) {
    FSDP_CHECK(
        !hit.is_write || takes_writes, ErrorCode::kInvalidArgument, "[touch] ", op, " writes ",
        describe(layout, hit),
        ", which is a gathered copy that is about to be freed: change the shards that "
        "sharded.parameters() returns, or edit inside full_parameters(/*writeback=*/true) on "
        "all ranks");
  }
  const Hit& first = hits.front();
  FSDP_CHECK(!at::autocast::is_autocast_enabled(layout.at(first.unit).device.type()),
             ErrorCode::kUnsupported, "[touch] ", op, " takes ", describe(layout, first),
             " under autocast, whose cache keeps a cast copy of every weight alive after its unit "
             "was freed: the memory promise would not hold. Switch autocast off around the model");
}

void refuse_unscaled_loss() {
  fail(ErrorCode::kInvalidArgument,
       "[touch] the model trains in float16, whose smallest number is 6e-8, and no "
       "fsdp::LossScaler was made for it: gradients would vanish. Make one and call "
       "scaler.scale(loss).backward(), use bfloat16, or set precision.allow_unscaled");
}

}  // namespace fsdp::engine
