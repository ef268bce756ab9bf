// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "engine/deferred/deferred_storages.hpp"
#include "engine/deferred/deferred_tape.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/touch/touch.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/engine/deferred_init.hpp"

namespace fsdp::engine {

namespace {

/// An operator on its way to the tape.
class Deferral {
 public:
  Deferral(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), keys_(keys), stack_(stack) {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      visit_tensors(argument(i), i, [&](const ArgumentPosition&, const at::Tensor& tensor) {
        takes_tensors_ = takes_tensors_ || tensor.defined();
        if (const auto entry = pending(tensor)) {
          tape_ = tape_ == nullptr ? entry->tape : tape_;
        } else if (tensor.defined() && is_written(i)) {
          writes_memory_ = true;
        }
      });
    }
  }

  /// Whether deferral has a say in it at all.
  bool concerns() const {
    const bool is_factory = !takes_tensors_ && !schema_.returns().empty() && returns_tensors();
    return tape_ != nullptr || (current_tape() != nullptr && is_factory);
  }

  /// See defer().
  bool run() {
    if (is_view()) {
      c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
      op_.callBoxed(stack_);
      return true;
    }
    if (op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      // Its parts come here one by one.
      const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kTouchKey);
      op_.redispatchBoxed(keys_ & below, stack_);
      return true;
    }
    c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
    const bool writes = writes_any();
    const bool is_scoped = current_tape() != nullptr;
    if (is_scoped) {
      tape_ = current_tape();
    }
    if (writes_memory_ || !returns_tensors() || changes_geometry() || (!is_scoped && !writes)) {
      return run_now();
    }
    return writes ? defer_write() : defer_new();
  }

 private:
  const c10::IValue& argument(std::size_t i) const {
    return (*stack_)[stack_->size() - schema_.arguments().size() + i];
  }
  at::Tensor tensor_at(const ArgumentPosition& place) const {
    const c10::IValue& value = argument(place.index);
    return place.element < 0
               ? value.toTensor()
               : value.toListRef()[static_cast<std::size_t>(place.element)].toTensor();
  }
  bool is_written(std::size_t i) const {
    const c10::AliasInfo* alias = schema_.arguments()[i].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  bool writes_any() const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (is_written(i)) {
        return true;
      }
    }
    return false;
  }
  bool returns_tensors() const {
    return (!schema_.returns().empty() || writes_any()) &&
           std::ranges::all_of(schema_.returns(), [](const c10::Argument& of) {
             return of.type()->isSubtypeOf(*c10::TensorType::get()) ||
                    of.type()->isSubtypeOf(*c10::ListType::ofTensors());
           });
  }
  /// The operator needs values: its operands get them. Random ones run by the tape all the same,
  /// which knows the state of their generator.
  bool run_now() {
    if (current_tape() != nullptr && is_random(op_)) {
      replace_by(tape_->run_now(make_step()));
      return true;
    }
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      visit_tensors(argument(i), i,
                    [](const ArgumentPosition&, const at::Tensor& tensor) { materialize(tensor); });
    }
    return false;
  }
  /// Results are other looks at the arguments: no value is read.
  bool is_view() const {
    if (op_.hasTag(at::Tag::inplace_view) && !changes_geometry()) {
      return true;
    }
    const bool is_composite =
        op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    return !writes_any() && !schema_.returns().empty() && !is_composite &&
           std::ranges::all_of(schema_.returns(),
                               [](const c10::Argument& of) { return of.alias_info() != nullptr; });
  }
  /// It gives a tensor other memory.
  bool changes_geometry() const {
    constexpr std::array<std::string_view, 4> kNames = {"aten::resize_", "aten::resize_as_",
                                                        "aten::set_", "aten::set_data"};
    return std::ranges::find(kNames, schema_.name()) != kNames.end();
  }
  DeferredStep make_step() const {
    DeferredStep step{.op = op_};
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      const c10::IValue& value = argument(i);
      step.arguments.push_back(value.isList() ? c10::IValue(value.toList().copy()) : value);
      visit_tensors(value, i, [&](const ArgumentPosition& place, const at::Tensor& tensor) {
        const auto entry = pending(tensor);
        at::Tensor kept = tensor;
        if (entry.has_value() && entry->tape == tape_) {
          step.operands.push_back({place, view_of(tensor, entry->id), is_written(i)});
          kept = at::Tensor();
        } else if (entry.has_value()) {
          kept = values_of(tensor);  // of another scope
        } else if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_inference()) {
          step.held.push_back({tensor, tensor._version()});
        }
        if (place.element < 0) {
          step.arguments[i] = kept;
        } else {
          step.arguments[i].toList().set(static_cast<std::size_t>(place.element), kept);
        }
      });
    }
    return step;
  }

  bool defer_write() {
    DeferredStep step = make_step();
    for (const DeferredStep::Operand& operand : step.operands) {
      if (operand.is_written) {
        forbid_raw_access(tensor_at(operand.place).storage().unsafeGetStorageImpl());
      }
    }
    torch::jit::Stack results;
    for (const c10::Argument& of : schema_.returns()) {
      results.push_back(argument(aliased_argument(of)));
    }
    tape_->add_step(std::move(step));
    replace_by(std::move(results));
    return true;
  }

  std::size_t aliased_argument(const c10::Argument& result) const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      const c10::AliasInfo* alias = schema_.arguments()[i].alias_info();
      if (alias != nullptr && result.alias_info() != nullptr &&
          alias->beforeSets() == result.alias_info()->beforeSets()) {
        return i;
      }
    }
    fail(ErrorCode::kUnsupported, "[DeferredInit] ", schema_.name(),
         " writes a tensor and returns another: call it outside of the scope");
  }

  bool defer_new() {
    torch::jit::Stack on_meta;
    c10::Device device = c10::kCPU;
    if (!run_on_meta(on_meta, device)) {
      return run_now();
    }
    DeferredStep step = make_step();
    // Memory of any content may be filled by hand: a table from a vector, say.
    const bool is_empty =
        schema_.name().starts_with("aten::empty") || schema_.name().starts_with("aten::new_empty");
    torch::jit::Stack results;
    for (std::size_t i = 0; i < on_meta.size(); ++i) {
      c10::IValue result =
          on_meta[i].isList() ? c10::IValue(on_meta[i].toList().copy()) : on_meta[i];
      visit_tensors(on_meta[i], i, [&](const ArgumentPosition& place, const at::Tensor& meta) {
        if (!meta.defined()) {
          return;
        }
        const auto [made, id] = make_deferred(meta, device, is_empty, tape_);
        step.products.push_back({place, id});
        if (place.element < 0) {
          result = made;
        } else {
          result.toList().set(static_cast<std::size_t>(place.element), made);
        }
      });
      results.push_back(std::move(result));
    }
    if (!is_empty) {
      tape_->add_step(std::move(step));
    }
    replace_by(std::move(results));
    return true;
  }

  /// Finds the results' shapes; false when the operator has no kernel for that.
  bool run_on_meta(torch::jit::Stack& stack, c10::Device& device) const {
    c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
    std::optional<c10::Device> found;
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      const c10::IValue& value = argument(i);
      const std::string& name = schema_.arguments()[i].name();
      if (value.isDevice()) {
        device = value.toDevice();
        found = device;
        stack.emplace_back(c10::Device(c10::kMeta));
        continue;
      }
      const bool is_factory_device = name == "device" && value.isNone() && !takes_tensors_;
      c10::IValue copy = value.isList() ? c10::IValue(value.toList().copy()) : value;
      if (is_factory_device) {
        copy = c10::Device(c10::kMeta);
      } else if (name == "pin_memory") {
        copy = c10::IValue();
      }
      visit_tensors(value, i, [&](const ArgumentPosition& place, const at::Tensor& tensor) {
        if (!tensor.defined()) {
          return;
        }
        if (!found.has_value()) {
          device = tensor.device();
          found = device;
        }
        const at::Tensor meta = at::empty_strided(
            tensor.sizes(), tensor.strides(),
            at::TensorOptions(tensor.scalar_type()).device(c10::Device(c10::kMeta)));
        if (place.element < 0) {
          copy = meta;
        } else {
          copy.toList().set(static_cast<std::size_t>(place.element), meta);
        }
      });
      stack.push_back(std::move(copy));
    }
    try {
      op_.callBoxed(&stack);
      return true;
    } catch (const c10::NotImplementedError&) {
      return false;
    }
  }

  void replace_by(torch::jit::Stack results) const {
    torch::jit::drop(*stack_, schema_.arguments().size());
    for (c10::IValue& result : results) {
      stack_->push_back(std::move(result));
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  c10::DispatchKeySet keys_;
  torch::jit::Stack* stack_;
  std::shared_ptr<DeferredTape> tape_;
  bool takes_tensors_ = false;
  bool writes_memory_ = false;  ///< it writes a tensor that has memory
};

}  // namespace

bool defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (current_tape() == nullptr && !is_any_deferred()) {
    return false;
  }
  Deferral deferral(op, keys, stack);
  return deferral.concerns() && deferral.run();
}

bool was_deferred(const at::Tensor& tensor) { return deferred_entry(tensor).has_value(); }

at::Tensor values_of(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  const auto entry = pending(tensor);
  if (!entry.has_value()) {
    return tensor.detach();
  }
  return view_of(tensor, entry->id).of(entry->tape->fill(entry->id));
}

}  // namespace fsdp::engine
