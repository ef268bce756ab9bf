// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/stand_in.hpp"

#include <ATen/ops/zeros.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/touch/touch.hpp"

namespace fsdp::engine {

namespace {

class StandIn : public c10::TensorImpl {
 public:
  StandIn(at::Tensor zero, c10::IntArrayRef sizes)
      : c10::TensorImpl(c10::TensorImpl::VIEW, c10::Storage(zero.storage()),
                        zero.key_set() | c10::DispatchKeySet(kTouchKey), zero.dtype()),
        zero_(std::move(zero)) {
    set_sizes_and_strides(sizes, std::vector<std::int64_t>(sizes.size(), 0));
  }

 private:
  const at::Tensor
      zero_;  ///< a second owner of the memory: autograd adds to nothing that is shared
};

}  // namespace

at::Tensor make_stand_in(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::Tensor(c10::make_intrusive<StandIn>(at::zeros({}, options), sizes));
}

bool add_stand_ins(torch::jit::Stack& stack) {
  constexpr std::size_t kArguments = 3;  // self, other, alpha
  const at::Tensor self = stack[stack.size() - kArguments].toTensor();
  if (!is_stand_in(self) || !is_stand_in(stack[stack.size() - kArguments + 1].toTensor())) {
    return false;
  }
  stack.resize(stack.size() - kArguments);
  stack.emplace_back(make_stand_in(self.sizes(), self.options()));
  return true;
}

bool is_stand_in(const at::Tensor& gradient) {
  return dynamic_cast<const StandIn*>(gradient.unsafeGetTensorImpl()) != nullptr;
}

}  // namespace fsdp::engine
