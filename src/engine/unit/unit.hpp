// SPDX-License-Identifier: Apache-2.0
/// A unit as it is laid out: what its parameters are, where each lies in the flat buffer, and which
/// slices of that are whose. Partition and Setup make it; from then on it is constant. What a rank
/// holds of a unit is in Slice and FlatParts; see also bundle.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/unit/placement.hpp"
#include "layout/unit_layout.hpp"

namespace fsdp {
class Copier;
}

namespace fsdp::engine {

/// One distinct tensor of the module (tied names share one).
struct Parameter {
  std::string name;
  std::vector<std::string> aliases;
  at::Tensor tensor;  ///< the module's own tensor: its TensorImpl never changes
  int order = 0;      ///< position among the module's parameters
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t numel = 0;
  layout::ParameterPart piece;  ///< what this rank owns of it
  layout::ParameterPart
      answered;  ///< and what of that it answers for; shard_offset is within its shard
  bool has_no_member = false;  ///< no member of a C++ class held it when it was sharded
};

/// Where a unit's shards live. See home.hpp.
struct Home {
  c10::Device device = c10::kCPU;
  bool is_pinned = false;
  Copier* copier = nullptr;  ///< null: in the memory of the gathered weights
};

struct Unit {
  std::string name;
  std::string module;  ///< path of the module that it is, "" for the root
  int bundle = 0;      ///< which units go together with it
  std::vector<Parameter> parameters;
  std::unique_ptr<layout::UnitLayout> layout;  ///< Placement::slices slices
  Placement placement;
  bool is_optional = false;     ///< UnitRule::optional
  bool is_kept = false;         ///< stays gathered to the end of backward
  bool casts_operands = false;  ///< what comes with its weights is cast to their type
  std::optional<at::ScalarType> result_dtype;  ///< what comes out is cast to this
  at::ScalarType dtype = at::kFloat;           ///< of the shards: what the optimizer updates
  at::ScalarType param_dtype = at::kFloat;     ///< of the gathered weights: what operators take
  at::ScalarType reduce_dtype = at::kFloat;    ///< in which gradients are collected and travel
  c10::Device device = c10::kCPU;              ///< of the gathered weights
  Home home;                                   ///< of slice and shards

  const Parameter& at(int parameter) const {
    return parameters[static_cast<std::size_t>(parameter)];
  }
  /// Whether operators take another type than the shards have.
  bool is_cast() const { return param_dtype != dtype; }
  bool is_offloaded() const { return home.copier != nullptr; }
  /// Whether a parameter requires grad now; that may change between steps.
  bool is_trainable() const {
    return std::ranges::any_of(
        parameters, [](const Parameter& parameter) { return parameter.tensor.requires_grad(); });
  }
  static std::int64_t itemsize_of(at::ScalarType type) {
    return static_cast<std::int64_t>(c10::elementSize(type));
  }
  std::int64_t itemsize() const { return itemsize_of(dtype); }
  std::int64_t numel_of(const SliceRun& run) const { return run.count * layout->shard_numel(); }
  std::int64_t slice_numel() const { return numel_of(placement.give); }
  std::int64_t shard_numel() const { return numel_of(placement.own); }
  /// Of what is given, what is kept at home: replicas' parts of a resident unit are on the device.
  std::int64_t rest_numel() const {
    return is_offloaded() && placement.is_resident() ? shard_numel() : slice_numel();
  }
  std::int64_t padding() const { return layout->padded_numel() - layout->total_numel(); }
  std::int64_t rest_bytes() const { return rest_numel() * itemsize_of(param_dtype); }
  std::int64_t resident_bytes() const {
    return is_offloaded() && placement.is_resident() ? slice_numel() * itemsize_of(param_dtype) : 0;
  }
  std::int64_t shard_bytes() const { return shard_numel() * itemsize(); }
  std::int64_t gathered_bytes() const { return layout->padded_numel() * itemsize_of(param_dtype); }
  std::int64_t reduced_bytes() const { return layout->padded_numel() * itemsize_of(reduce_dtype); }
  std::int64_t whole_bytes() const { return layout->padded_numel() * itemsize(); }
  std::int64_t kept_bytes() const {
    return placement.secondary == nullptr ? 0 : numel_of(placement.kept) * itemsize_of(param_dtype);
  }
  /// Logical elements in a run of slices.
  std::int64_t logical_numel(const SliceRun& run) const {
    const std::int64_t begin = run.first * layout->shard_numel();
    return std::max<std::int64_t>(0,
                                  std::min(begin + numel_of(run), layout->total_numel()) - begin);
  }
};

}  // namespace fsdp::engine
