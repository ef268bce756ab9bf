// SPDX-License-Identifier: Apache-2.0
/// Who is told what a backward brings and how it ends. See NOTE [The end of backward].
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::engine {

/// *Thread safety*: gradient() is called from autograd's threads; the others from the thread that
/// called backward(), after gradient() has returned on all threads.
class BackwardTarget {
 public:
  virtual ~BackwardTarget() = default;
  /// A gradient of the module's tensor is there.
  virtual void gradient(int unit, int parameter, const at::Tensor& tensor) = 0;
  /// The outermost backward has ended.
  virtual void end_backward() = 0;
  /// An exception ended it.
  virtual void backward_died() noexcept = 0;
};

}  // namespace fsdp::engine
