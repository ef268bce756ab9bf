// SPDX-License-Identifier: Apache-2.0
/// A unit as the engine holds it: its parameters' handles and storages, its layout, and this rank's
/// shards. See also bundle.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/touch/flat_storage.hpp"
#include "engine/unit/placement.hpp"
#include "fsdp/layout/unit_layout.hpp"

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
  std::unique_ptr<FlatStorage> storage;
  std::unique_ptr<FlatStorage> whole_storage;  ///< in full_parameters(), of a unit that is cast
  std::unique_ptr<FlatStorage> grad_guard_storage;
  at::Tensor grad_guard;     ///< stands in the module tensor's grad; any use throws
  at::Tensor shard;          ///< 1-D view of the unit's flat shard: what optimizers see
  at::Tensor grad_shard;     ///< the same of the flat gradient shard
  layout::Piece piece;       ///< what this rank owns of it
  layout::Piece answered;    ///< and what of that it answers for; shard_offset is within `shard`
  int fired = 0;             ///< gradients that arrived since the reduce buffer was opened
  bool is_deferred = false;  ///< a part of its gradient waits whole for a later reduction
  bool is_present = false;   ///< this rank has a gradient for the step, wherever it waits
  bool was_reduced = false;  ///< the last backward that handed out gradients had one for it
  bool was_touched = false;  ///< ever
  bool has_member = true;    ///< a member of a C++ class should hold the tensor
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
  at::Tensor slice;     ///< [rest_numel()] of param_dtype: what this rank gives to a gather
  at::Tensor resident;  ///< [slice_numel()] on the device: what operators read of a resident unit
                        ///< that is offloaded
  at::Tensor
      flat_shard;  ///< [shard_numel()]: what its optimizer owns; part of slice unless is_cast
  at::Tensor flat_grad_shard;  ///< [shard_numel()]; undefined where no parameter has ever trained
  at::Tensor secondary;        ///< Placement::kept of the gathered unit, while has_secondary
  bool has_secondary = false;
  bool is_slice_current = false;    ///< the slice has what the shards had at slice_version
  std::uint32_t slice_version = 0;  ///< of flat_shard
  std::uint32_t seen_version = 0;   ///< of flat_shard, when its weights were last used in a forward
  bool was_in_forward = false;      ///< its weights were taken since, and no backward has ended
  bool were_weights_bumped = false;  ///< their version counters know of what came since
  bool trains = false;               ///< a parameter required grad when the last backward began

  /// Whether operators take another type than the shards have.
  bool is_cast() const { return param_dtype != dtype; }
  bool is_offloaded() const { return home.copier != nullptr; }
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
  std::uint32_t shard_version() const {
    return flat_shard.unsafeGetTensorImpl()->version_counter().current_version();
  }
  /// Points the parameters into the gathered unit at `base`, which they do not own.
  void install(void* base) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].storage->install(static_cast<char*>(base) +
                                     layout->offset(static_cast<int>(i)) *
                                         itemsize_of(param_dtype));
    }
  }
  /// Where they are while the unit is not gathered: nowhere, or in this rank's own memory.
  void rest() {
    if (placement.is_resident()) {
      install(is_offloaded() ? resident.data_ptr() : slice.data_ptr());
      return;
    }
    for (Parameter& parameter : parameters) {
      parameter.storage->remove();
    }
  }
  bool is_trainable() const {
    for (const Parameter& parameter : parameters) {
      if (parameter.tensor.requires_grad()) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace fsdp::engine
