// SPDX-License-Identifier: Apache-2.0
/// Operators on the host that take pinned memory, which the dispatcher does not bring to the
/// device. Compiled with NDEBUG, as LibTorch is: RecordFunction has one member more without.
#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "support/sim/runtime.hpp"

namespace fsdp::test::sim::detail {

namespace {

bool makes_view(const c10::FunctionSchema& schema) {
  const c10::AliasInfo* alias =
      schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) {
    return {value.toTensor()};
  }
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
}

const void* address_of(const at::Tensor& tensor) {
  const bool has_memory = tensor.is_cpu() && tensor.numel() > 0 && tensor.has_storage();
  return has_memory ? tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()
                    : nullptr;
}

std::unique_ptr<at::ObserverContext> watch(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (is_in_kernel() || !schema || makes_view(*schema)) {
    return nullptr;
  }
  std::vector<std::pair<at::Tensor, bool>> pinned;
  for (std::size_t i = 0; i < function.inputs().size(); ++i) {
    const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
    for (const at::Tensor& tensor : tensors_in(function.inputs()[i])) {
      if (!tensor.defined()) {
        continue;
      }
      if (tensor.device().is_privateuseone()) {
        return nullptr;  // a copy: the device's access, stamped where it is launched
      }
      if (is_pinned_address(address_of(tensor))) {
        pinned.emplace_back(tensor, alias != nullptr && alias->isWrite());
      }
    }
  }
  const auto held = lock();
  for (const auto& [tensor, writes] : pinned) {
    check_host_access(function.name(), {tensor.const_data_ptr(), tensor.nbytes(), writes});
  }
  return nullptr;
}

}  // namespace

void watch_host() { at::addGlobalCallback(at::RecordFunctionCallback(&watch).needsInputs(true)); }

}  // namespace fsdp::test::sim::detail
