// SPDX-License-Identifier: Apache-2.0
#include "support/sim/kernels.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fsdp::test::sim::detail {

namespace {

/// The host learns how large the results are.
constexpr std::string_view kShapesFromData[] = {"aten::nonzero", "aten::masked_select",
                                                "aten::_unique2", "aten::unique_dim"};

}  // namespace

KernelScope::KernelScope() : was_inside_(std::exchange(is_in_kernel(), true)) {}
KernelScope::~KernelScope() { is_in_kernel() = was_inside_; }

Access access_to(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) {
    return {};
  }
  return {.begin = tensor.const_data_ptr(),
          .bytes =
              at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize()),
          .writes = writes};
}

at::Tensor kernel_alias(const at::Tensor& tensor) {
  void* data = tensor.numel() == 0 ? nullptr : kernel_view(tensor.const_data_ptr());
  at::Tensor alias = at::from_blob(data, tensor.sizes(), tensor.strides(),
                                   at::TensorOptions(tensor.dtype()).device(at::kCPU));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

/// at::native::resize_ would copy the storage's bytes on the host.
const at::Tensor& resize_in_place(const at::Tensor& self, c10::IntArrayRef sizes,
                                  std::optional<at::MemoryFormat>) {
  if (self.sizes() != sizes) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.itemsize(), static_cast<std::size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  return self;
}

// --- arguments -------------------------------------------------------------------------------

void Call::run(const std::vector<c10::IValue>& arguments, Stack& stack) {
  Stack converted;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema_.arguments()[i];
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    converted.push_back(convert(arguments[i], writes, argument.is_out()));
  }
  finish(arguments, std::move(converted), stack);
}

void Call::run_as(const std::vector<c10::IValue>& arguments, Stack& stack) {
  Stack converted;
  for (const c10::IValue& argument : arguments) {
    converted.push_back(convert(argument, false, false));
  }
  finish(arguments, std::move(converted), stack);
}

c10::IValue Call::convert(const c10::IValue& value, bool writes, bool is_out) {
  if (value.isTensor()) {
    return convert(value.toTensor(), writes, is_out, false);
  }
  if (value.isTensorList()) {
    const std::vector<at::Tensor> elements = value.toTensorVector();
    has_device_list_ = has_device_list_ || std::ranges::any_of(elements, is_on_device);
    c10::List<at::Tensor> list;
    for (const at::Tensor& element : elements) {
      list.push_back(convert(element, writes, is_out, has_device_list_));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& element : value.toOptionalTensorList()) {
      list.push_back(element ? std::optional(convert(*element, writes, is_out, false)) : element);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) {
    note_device(value.toDevice().index());
    return c10::Device(at::kCPU);
  }
  return value;
}

at::Tensor Call::convert(const at::Tensor& tensor, bool writes, bool is_out, bool is_in_list) {
  if (!is_on_device(tensor)) {
    const bool is_scalar = !tensor.defined() || tensor.dim() == 0;
    const bool is_index = schema_.name().find("index") != std::string::npos;
    TORCH_CHECK(is_scalar || is_index, schema_.name(), ": a tensor of sizes ", tensor.sizes(),
                " is on the CPU, others are on the device");
    TORCH_CHECK(!is_in_list || !tensor.defined(), schema_.name(),
                ": a CPU tensor in a list beside device tensors: an accelerator's kernel would "
                "read an address of the host");
    // What the host does to it next must not reach the kernel.
    const bool must_be_kept =
        tensor.defined() && is_late() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return must_be_kept ? tensor.clone() : tensor;
  }
  note_device(tensor.device().index());
  const bool may_be_resized = is_out && tensor.numel() == 0;
  at::Tensor alias = kernel_alias(tensor);
  if (may_be_resized) {
    alias = at::empty(tensor.sizes(), alias.options());
  }
  accesses_.push_back(access_to(tensor, writes));
  pairs_.push_back({.original = tensor, .alias = alias, .may_be_resized = may_be_resized});
  return alias;
}

void Call::note_device(int index) {
  if (!std::exchange(has_device_, true)) {
    device_ = index;
  }
}

// --- running ---------------------------------------------------------------------------------

void Call::finish(const std::vector<c10::IValue>& arguments, Stack converted, Stack& stack) {
  const bool may_resize = std::ranges::any_of(pairs_, &Pair::may_be_resized);
  const bool only_writes = std::ranges::all_of(schema_.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && result.alias_info()->isWrite();
  });
  if (only_writes && !may_resize) {
    run_late(arguments, std::move(converted), stack);
  } else {
    run_now(std::move(converted), stack);
  }
}

void Call::run_late(const std::vector<c10::IValue>& arguments, Stack converted, Stack& stack) {
  launch(schema_.name(), current_stream(device_), accesses_,
         [kernel = kernel_, converted = std::move(converted)] {
           const KernelScope in_kernel;
           Stack copy = converted;
           kernel.callBoxed(&copy);
         });
  for (const c10::Argument& result : schema_.returns()) {
    stack.push_back(argument_of(result, arguments));
  }
}

void Call::run_now(Stack converted, Stack& stack) {
  const int stream = current_stream(device_);
  drain(stream);
  {
    const KernelScope in_kernel;
    kernel_.callBoxed(&converted);
  }
  bool tells_the_host =
      std::ranges::find(kShapesFromData, schema_.name()) != std::ranges::end(kShapesFromData);
  const c10::DeviceGuard guard(device(device_));
  for (const c10::IValue& result : converted) {
    if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& element : result.toTensorVector()) {
        list.push_back(bring(element));
      }
      stack.emplace_back(std::move(list));
    } else if (result.isTensor()) {
      stack.emplace_back(bring(result.toTensor()));
    } else {
      tells_the_host = true;
      stack.push_back(result);
    }
  }
  launch(schema_.name(), stream, accesses_, [results = std::move(results_)] {
    for (const Bytes& bytes : results) {
      std::memcpy(bytes.dst, bytes.src.const_data_ptr(), bytes.count);
    }
  });
  if (is_late()) {
    const auto held = lock();
    ++counts(device_).not_late;
  }
  if (tells_the_host) {
    synchronize(stream);
  }
}

// --- results ---------------------------------------------------------------------------------

/// The operator's own argument that the result is.
c10::IValue Call::argument_of(const c10::Argument& result,
                              const std::vector<c10::IValue>& arguments) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema_.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
      return arguments[i];
    }
  }
  TORCH_CHECK(false, schema_.name(), " returns an argument that it does not take");
}

/// A kernel's result as a tensor of the device.
at::Tensor Call::bring(const at::Tensor& result) {
  if (!result.defined()) {
    return result;
  }
  for (const Pair& pair : pairs_) {
    const at::Tensor& original = pair.original;
    if (pair.may_be_resized && result.is_same(pair.alias)) {
      if (result.sizes() != original.sizes()) {
        resize_in_place(original, result.sizes());
      }
      bring_bytes(original, result);
      return original;
    }
    if (result.is_same(pair.alias)) {
      return original;
    }
    if (result.storage().is_alias_of(pair.alias.storage())) {
      const auto bytes = static_cast<const char*>(result.const_data_ptr()) -
                         static_cast<const char*>(pair.alias.const_data_ptr());
      return at::as_strided(
          original, result.sizes(), result.strides(),
          original.storage_offset() + bytes / static_cast<std::int64_t>(result.itemsize()));
    }
  }
  at::Tensor here =
      at::empty_strided(result.sizes(), result.strides(), result.options().device(device(device_)));
  bring_bytes(here, result);
  return here;
}

void Call::bring_bytes(const at::Tensor& dst, const at::Tensor& src) {
  const Access access = access_to(dst, true);
  if (access.bytes > 0) {
    accesses_.push_back(access);
    results_.push_back({.dst = kernel_view(access.begin), .src = src, .count = access.bytes});
  }
}

}  // namespace fsdp::test::sim::detail
