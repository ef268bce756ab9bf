// SPDX-License-Identifier: Apache-2.0
/// What a rank stores of a module: shards of its parameters, and its buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

/// A parameter of the module as this rank stores it.
struct NamedShard {
  std::string name;                  ///< the module's name for it; of tied ones, the first
  at::Tensor parameter;              ///< the module's tensor; any operator that takes it gathers it
  at::Tensor shard;                  ///< 1-D, possibly empty: this rank's part; a leaf
  std::int64_t begin = 0;            ///< its first element's position in the flattened parameter
  std::vector<std::int64_t> sizes;   ///< shape of the whole parameter
  std::vector<std::string> aliases;  ///< other names of the same parameter (tied weights)
  int unit = 0;                      ///< position of its unit in Report::units
  /// Of the elements in `shard`, those that this rank answers for. Several ranks may hold an
  /// element, exactly one of the world answers for it: add up norms and write files over these.
  std::int64_t answered_begin = 0;  ///< position in `shard`
  std::int64_t answered_numel = 0;
};

/// A rule by which Sharded::param_groups() forms groups. It sees whole shapes and names, because
/// shards are 1-D whatever they are parts of: `shard.dim() >= 2` is never true.
struct GroupRule {
  int groups = 1;
  /// The group of a parameter, from 0 to groups - 1; -1 for none, which leaves it untrained.
  std::function<int(const NamedShard&)> group_of = {};
};

/// Two groups: 0 has the parameters that weight decay is for, 1 the others, which are biases and
/// all that have fewer than two dimensions, as the scales of norms.
GroupRule decay_rule();

/// Parameters that an optimizer treats alike, in the module's order.
struct ParameterGroup {
  std::vector<std::string> names;      ///< for optim::Group::parameters
  std::vector<at::Tensor> parameters;  ///< for torch::optim::OptimizerParamGroup
};

/// See Sharded::on_reduced().
using ReducedHook = std::function<void(const NamedShard& parameter, at::Tensor grad)>;

/// A unit's shard as an optimizer that runs over whole ones sees it. Padding is zero in `shard` and
/// `grad`, and must stay so.
struct FlatShard {
  at::Tensor shard;  ///< 1-D
  at::Tensor grad;   ///< of the same size; undefined where no parameter of the unit has one
  bool trains;       ///< a parameter of it requires grad now; that may change between steps
  std::int64_t answered_begin;  ///< as in NamedShard, padding included
  std::int64_t answered_numel;
};

/// A buffer of the module; every rank holds it whole.
struct NamedBuffer {
  std::string name;
  at::Tensor buffer;
};

}  // namespace fsdp
