// SPDX-License-Identifier: Apache-2.0
/// Who is told what a backward brings and how it ends, and that somebody asks for what it brought.
/// See NOTE [The end of backward].
/// See NOTE [two handles on one gradient].
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::engine {

/// *Thread safety*: expect_gradient() and gradient() are called from autograd's threads; the next
/// two from the thread that called backward(), after they have returned on all threads;
/// shard_grad_asked() from any.
class BackwardTarget {
 public:
  virtual ~BackwardTarget() = default;
  /// Autograd is about to accumulate a gradient into the module's tensor, or to capture it.
  virtual void expect_gradient(int unit, int parameter) = 0;
  /// A gradient of the module's tensor is there; one that stands in says that this rank does not
  /// use the parameter.
  virtual void gradient(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in) = 0;
  /// The outermost backward has ended.
  virtual void end_backward() = 0;
  /// An exception ended it.
  virtual void backward_died() noexcept = 0;
  /// Somebody asks for the grad of a shard, to read or to replace it. @throws Error
  /// kInvalidArgument when a gradient was assigned to the module's tensor
  virtual void shard_grad_asked(int unit, int parameter) = 0;
};

}  // namespace fsdp::engine
