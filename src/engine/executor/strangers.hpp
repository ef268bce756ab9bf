// SPDX-License-Identifier: Apache-2.0
/// Tensors that train and are in no shard, as the graphs of backwards show them: members of a
/// program's own classes, which no registry has. See NOTE [a module that changes after it was
/// sharded].
///
/// Autograd has counted a graph's nodes before it runs any: looking at each once costs a hundredth
/// of running it, so each backward is looked at, with those inside of it that weights take part in.
///
/// Inputs may train as well, and so may what a backward inside of another one begins with. They are
/// new in each step, where a weight is the same tensor in the next.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/unit/module_layout.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class Strangers {
 public:
  /// `ignored`: parameters that may train in no shard.
  explicit Strangers(std::vector<at::Tensor> ignored) : ignored_(std::move(ignored)) {}

  /// A backward begins.
  void begin();
  /// Looks at the graph of the backward that runs on this thread, the first time. Called inside of
  /// it.
  void look();
  /// A backward that brought gradients has ended. `left_out`: weights that train and that no
  /// operator of this step took. Tells, if `tells`, of strangers of kinds (shape and type) that
  /// were not told of before: at once in the first step and where weights were left out, else of
  /// those that were in the last step, too.
  /// @throws Error kInvalidArgument for a stranger of the shape of a weight that was left out
  void end(const ModuleLayout& layout, std::span<const ModuleLayout::Index> left_out, bool tells);

 private:
  struct Seen {
    at::Tensor leaf;
    bool is_inner;  ///< of a backward inside of the outermost one
  };
  struct Kind {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    bool operator==(const Kind&) const = default;
  };

  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  bool was_there_before(const at::Tensor& leaf) const;
  bool is_of_new_kind(const at::Tensor& stranger);

  const std::vector<at::Tensor> ignored_;
  /// Graph tasks: the outermost one, and the last one.
  int first_task_ = -1, last_task_ = -1;
  std::vector<Seen> seen_;    ///< in this backward
  std::vector<Weak> before_;  ///< in the one before, which keep the address and no memory
  bool is_first_ = true;
  std::vector<Kind> told_;
};

}  // namespace fsdp::engine
