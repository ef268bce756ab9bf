// SPDX-License-Identifier: Apache-2.0
/// Operators of the device's own: memory, views, copies, and those that the CPU knows by another
/// name; and the registration of all. See NOTE [Kernels of the simulated device].
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "support/sim/kernels.hpp"

namespace fsdp::test::sim::detail {

namespace {

using Stack = torch::jit::Stack;

std::vector<c10::IValue> take_arguments(const c10::FunctionSchema& schema, Stack* stack) {
  return torch::jit::pop(*stack, schema.arguments().size());
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Call(op.schema(), op).run(take_arguments(op.schema(), stack), *stack);
}

// --- copies ----------------------------------------------------------------------------------

/// What `after` gets from now on comes after what `before` was given.
void order(c10::Device before, c10::Device after) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(guard.getStream(before));
  guard.getStream(after).wait(event);
}

bool is_pageable(const at::Tensor& tensor) {
  return !is_on_device(tensor) && !is_pinned_address(tensor.const_data_ptr());
}

at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const bool is_from_host = !is_on_device(src), is_to_host = !is_on_device(dst);
  const int device = (is_from_host ? dst : src).device().index();
  const int stream = current_stream(device);
  std::vector<Access> accesses;
  const auto part = [&](const at::Tensor& tensor, bool writes) {
    if (!is_pageable(tensor)) {
      accesses.push_back(access_to(tensor, writes));
    }
    return is_on_device(tensor) ? kernel_alias(tensor) : tensor.detach();
  };
  const at::Tensor to = part(dst, true);
  // Pageable memory is staged: what happens to it next does not matter.
  const at::Tensor from =
      is_from_host && is_pageable(src) ? part(src, false).clone() : part(src, false);
  const bool is_between = !is_from_host && !is_to_host && src.device() != dst.device();
  if (is_between) {
    order(dst.device(), src.device());
  }
  launch("copy", stream, accesses, [from, to] {
    const KernelScope in_kernel;
    to.copy_(from);
  });
  for (const Access& access : accesses) {
    if (is_pinned_address(access.begin)) {
      record_use(access.begin, stream);
    }
  }
  if (is_between) {
    order(src.device(), dst.device());
  }
  {
    const auto held = lock();
    ++counts(device).copies;
  }
  const bool blocks = !non_blocking || (is_to_host && is_pageable(dst));
  if ((is_from_host || is_to_host) && blocks) {
    synchronize(stream);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& src, const at::Tensor& dst) {
  resize_in_place(dst, src.sizes());
  return copy_from(src, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor value = at::empty({}, at::TensorOptions(self.dtype()));
  copy_from(self, value, false);
  return value.item();
}

// --- memory and views ------------------------------------------------------------------------

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> of, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(of));
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> of, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(of));
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

void record_stream(at::Tensor& self, at::Stream stream) {
  {
    const auto held = lock();
    ++counts(static_cast<int>(stream.device_index())).stream_records;
  }
  record_use(self.storage().data(), stream_number(stream));
}

/// PrivateUse1 is not among the backends whose tensors set_data() lets stand for each other.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

// --- operators that the CPU does not have under this name ------------------------------------

c10::OperatorHandle cpu_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle& op, Stack* stack) {
  Call(op.schema(), cpu_operator("aten::convolution"))
      .run(take_arguments(op.schema(), stack), *stack);
}

void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  std::vector<c10::IValue> arguments = take_arguments(op.schema(), stack);
  const std::int64_t channels = arguments[0].toTensor().size(1);
  arguments.insert(arguments.begin() + 3, c10::List<std::int64_t>({channels}));
  Call(op.schema(), cpu_operator("aten::convolution_backward")).run_as(arguments, *stack);
}

/// The gates of an LSTM cell: input, forget, cell and output.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input,
                                                         const at::Tensor& hidden,
                                                         const at::Tensor& cx,
                                                         const std::optional<at::Tensor>& bias_i,
                                                         const std::optional<at::Tensor>& bias_h) {
  at::Tensor gates = input + hidden;
  for (const auto& bias : {bias_i, bias_h}) {
    gates = bias.has_value() && bias->defined() ? gates + *bias : gates;
  }
  const auto parts = gates.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(),
                   o = parts[3].sigmoid();
  const at::Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hy, const std::optional<at::Tensor>& grad_cy,
    const at::Tensor& cx, const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const at::Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const at::Tensor dh = grad_hy.has_value() && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  const at::Tensor tanh = cy.tanh();
  at::Tensor dc = dh * o * (1 - tanh * tanh);
  dc = grad_cy.has_value() && grad_cy->defined() ? dc + *grad_cy : dc;
  const at::Tensor gates = at::cat(
      {dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g * g), dh * tanh * o * (1 - o)},
      1);
  return {gates, dc * f, has_bias ? gates.sum(0) : at::Tensor()};
}

void register_own(torch::Library& aten) {
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", &at::native::view);
  aten.impl("view_as_real", &at::native::view_as_real);
  aten.impl("view_as_complex", &at::native::view_as_complex);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("unfold", &at::native::unfold);
  aten.impl("resize_", &resize_in_place);
  aten.impl("set_.source_Tensor", &at::native::set_tensor_);
  aten.impl("set_.source_Storage",
            static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  aten.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("_local_scalar_dense", &local_scalar_dense);
  aten.impl("record_stream", &record_stream);
  aten.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  aten.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  aten.impl("convolution_backward_overrideable",
            torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  aten.impl("_thnn_fused_lstm_cell", &lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
}

}  // namespace

void register_operators() {
  using torch::Library;
  static Library all(Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  static Library own(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  register_own(own);
  // Their fallbacks would make a copy of the source, by way of the same operator.
  static Library conjugate(Library::IMPL, "aten", c10::DispatchKey::Conjugate, __FILE__, __LINE__);
  conjugate.impl("_copy_from", torch::CppFunction::makeFallthrough());
  static Library negative(Library::IMPL, "aten", c10::DispatchKey::Negative, __FILE__, __LINE__);
  negative.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace fsdp::test::sim::detail
