// SPDX-License-Identifier: Apache-2.0
/// Operators of the device are the CPU's kernels over the same bytes.
///
/// NOTE [Kernels of the simulated device]
/// One boxed function serves every operator that LibTorch does not compose from others. It gives
/// the CPU's kernel, in place of each device tensor, a CPU tensor over the kernel view of its
/// bytes. An operator that writes its arguments only (in place, out) can run late: LibTorch's
/// structured operators all come so, shapes worked out. Any other one runs while it is launched,
/// since the shapes of its results are not known before: in Mode::kLate the host then waits for the
/// stream, as it may on an accelerator whose queue is full, and learns no order from it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>
#include <vector>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_privateuseone();
}

/// From the first to the last byte of a tensor.
Access access_to(const at::Tensor& tensor, bool writes);
/// A CPU tensor over the kernel view of the same bytes.
at::Tensor kernel_alias(const at::Tensor& tensor);
const at::Tensor& resize_in_place(const at::Tensor& self, c10::IntArrayRef sizes,
                                  std::optional<at::MemoryFormat> = std::nullopt);

/// For the length of a kernel's body: what it calls is the CPU's own.
class KernelScope {
 public:
  KernelScope();
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  bool was_inside_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

/// Serves an operator by the CPU's kernel of `kernel`.
class Call {
 public:
  using Stack = torch::jit::Stack;

  Call(const c10::FunctionSchema& schema, c10::OperatorHandle kernel)
      : schema_(schema), kernel_(std::move(kernel)) {}
  void run(const std::vector<c10::IValue>& arguments, Stack& stack);
  /// Where the kernel's schema is not the operator's: `arguments` are the kernel's.
  void run_as(const std::vector<c10::IValue>& arguments, Stack& stack);

 private:
  /// A device tensor and what the kernel gets for it.
  struct Pair {
    at::Tensor original, alias;
    bool may_be_resized;
  };
  struct Bytes {
    void* dst;
    at::Tensor src;
    std::size_t count;
  };

  c10::IValue convert(const c10::IValue& value, bool writes, bool is_out);
  at::Tensor convert(const at::Tensor& tensor, bool writes, bool is_out, bool is_in_list);
  void note_device(int index);
  void finish(const std::vector<c10::IValue>& arguments, Stack converted, Stack& stack);
  void run_late(const std::vector<c10::IValue>& arguments, Stack converted, Stack& stack);
  void run_now(Stack converted, Stack& stack);
  c10::IValue argument_of(const c10::Argument& result,
                          const std::vector<c10::IValue>& arguments) const;
  at::Tensor bring(const at::Tensor& result);
  void bring_bytes(const at::Tensor& dst, const at::Tensor& src);

  const c10::FunctionSchema& schema_;
  c10::OperatorHandle kernel_;
  std::vector<Pair> pairs_;
  std::vector<Access> accesses_;
  std::vector<Bytes> results_;
  int device_ = current_device();
  bool has_device_ = false, has_device_list_ = false;
};

}  // namespace fsdp::test::sim::detail
