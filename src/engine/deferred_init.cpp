// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/deferred_init.hpp"

#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "engine/deferred.hpp"
#include "engine/deferred_tape.hpp"
#include "engine/touch.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

constexpr const char* kNoMemory =
    "the tensor was made in a fsdp::DeferredInit scope and has no memory yet. Operators fill it by "
    "themselves; for raw access call fsdp::materialize(tensor), or shard its module first";

struct Entry {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being reused
  std::shared_ptr<DeferredTape> tape;                 ///< null once it is filled
  std::size_t id;
};

/// All storages of deferred tensors in the process.
class DeferredStorages {
 public:
  static DeferredStorages& instance() {
    // Never destroyed: tensors may outlive static objects.
    static auto* storages = new DeferredStorages();
    return *storages;
  }
  void add(const c10::Storage& storage, std::shared_ptr<DeferredTape> tape, std::size_t id) {
    std::lock_guard lock(mutex_);
    entries_.insert_or_assign(storage.unsafeGetStorageImpl(),
                              Entry{storage.getWeakStorageImpl(), std::move(tape), id});
    is_any_.store(true, std::memory_order_relaxed);
  }
  std::optional<Entry> find(const c10::StorageImpl* storage) {
    if (!is_any_.load(std::memory_order_relaxed)) {
      return std::nullopt;
    }
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(storage);
    return found == entries_.end() ? std::nullopt : std::optional(found->second);
  }
  void set_filled(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(storage); found != entries_.end()) {
      found->second.tape.reset();
    }
  }
  /// Forgets the storages that are gone.
  void sweep() {
    std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.storage.expired(); });
    is_any_.store(!entries_.empty(), std::memory_order_relaxed);
  }
  bool is_any() const { return is_any_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_any_ = false;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

std::optional<Entry> entry_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kTouchKey) || !tensor.has_storage()) {
    return std::nullopt;
  }
  return DeferredStorages::instance().find(tensor.storage().unsafeGetStorageImpl());
}

/// Its entry if it is still to be filled.
std::optional<Entry> pending(const at::Tensor& tensor) {
  std::optional<Entry> entry = entry_of(tensor);
  return entry.has_value() && entry->tape != nullptr ? entry : std::nullopt;
}

thread_local std::shared_ptr<DeferredTape> current_tape;

using Visit = std::function<void(const Place&, const at::Tensor&)>;

void visit_tensors(const c10::IValue& value, std::size_t index, const Visit& visit) {
  if (value.isTensor()) {
    visit({index, -1}, value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    std::ptrdiff_t element = 0;
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) {
        visit({index, element}, item.toTensor());
      }
      ++element;
    }
  }
}

/// What of a tensor is enough to look at its storage in the same way.
DeferredView view_of(const at::Tensor& tensor, std::size_t storage) {
  return {storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

/// A tensor without memory over a storage of the tape, like `meta`.
at::Tensor make_deferred(const at::Tensor& meta, c10::Device device, bool may_be_written_by_hand,
                         std::shared_ptr<DeferredTape> tape, std::size_t* id) {
  const auto bytes = static_cast<std::int64_t>(meta.storage().nbytes());
  std::shared_ptr<LazyBlock> block;
  c10::DataPtr data(nullptr, device);
  if (may_be_written_by_hand && device.is_cpu()) {
    block = std::make_shared<LazyBlock>(static_cast<std::size_t>(bytes));
    auto* owner = new std::shared_ptr<LazyBlock>(block);
    data = c10::DataPtr(
        block->data(), owner,
        [](void* context) { delete static_cast<std::shared_ptr<LazyBlock>*>(context); }, device);
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), c10::SymInt(bytes), std::move(data),
                       /*allocator=*/nullptr, /*resizable=*/false);
  if (block == nullptr) {
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        std::string(kNoMemory));
  }
  *id = tape->add_storage(bytes, device, block);
  DeferredStorages::instance().add(storage, std::move(tape), *id);
  const at::Tensor like = at::empty({0}, at::TensorOptions(meta.scalar_type()).device(device));
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), like.key_set() | c10::DispatchKeySet(kTouchKey), meta.dtype());
  impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  return at::Tensor(std::move(impl));
}

/// An operator on its way to the tape.
class Deferral {
 public:
  Deferral(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
      : op_(op), schema_(op.schema()), keys_(keys), stack_(stack) {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      visit_tensors(argument(i), i, [&](const Place&, const at::Tensor& tensor) {
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
    return tape_ != nullptr || (current_tape != nullptr && is_factory);
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
    const bool is_scoped = current_tape != nullptr;
    if (is_scoped) {
      tape_ = current_tape;
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
    if (current_tape != nullptr && is_random(op_)) {
      replace_by(tape_->run_now(make_step()));
      return true;
    }
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      visit_tensors(argument(i), i,
                    [](const Place&, const at::Tensor& tensor) { materialize(tensor); });
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
      visit_tensors(value, i, [&](const Place& place, const at::Tensor& tensor) {
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
        forbid_raw_access(operand.place);
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

  /// From here on its content is what the steps say.
  void forbid_raw_access(const Place& place) const {
    const c10::IValue& value = argument(place.index);
    const at::Tensor tensor =
        place.element < 0 ? value.toTensor()
                          : value.toListRef()[static_cast<std::size_t>(place.element)].toTensor();
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kNoMemory));
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
      visit_tensors(on_meta[i], i, [&](const Place& place, const at::Tensor& meta) {
        if (!meta.defined()) {
          return;
        }
        std::size_t id = 0;
        const at::Tensor made = make_deferred(meta, device, is_empty, tape_, &id);
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
      visit_tensors(value, i, [&](const Place& place, const at::Tensor& tensor) {
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
  if (current_tape == nullptr && !DeferredStorages::instance().is_any()) {
    return false;
  }
  Deferral deferral(op, keys, stack);
  return deferral.concerns() && deferral.run();
}

bool was_deferred(const at::Tensor& tensor) { return entry_of(tensor).has_value(); }

at::Tensor values_of(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  const auto entry = pending(tensor);
  if (!entry.has_value()) {
    return tensor.detach();
  }
  return view_of(tensor, entry->id).of(entry->tape->fill(entry->id));
}

}  // namespace fsdp::engine

namespace fsdp {

struct DeferredInit::State {
  explicit State(std::shared_ptr<engine::DeferredTape> tape)
      : outer(std::exchange(engine::current_tape, std::move(tape))), include(engine::kTouchKey) {}
  ~State() { engine::current_tape = outer; }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<engine::DeferredTape> outer;
  c10::impl::IncludeDispatchKeyGuard include;
};

DeferredInit::DeferredInit() {
  engine::ensure_fallback();
  engine::DeferredStorages::instance().sweep();
  const bool is_outermost = engine::current_tape == nullptr;
  state_ = std::make_unique<State>(is_outermost ? std::make_shared<engine::DeferredTape>()
                                                : engine::current_tape);
}

DeferredInit::~DeferredInit() = default;

bool is_deferred(const at::Tensor& tensor) { return engine::pending(tensor).has_value(); }

void materialize(const at::Tensor& tensor) {
  const auto entry = engine::pending(tensor);
  if (!entry.has_value()) {
    return;
  }
  auto* memory = new c10::Storage(entry->tape->fill(entry->id));
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(c10::DataPtr(
      memory->mutable_data(), memory,
      [](void* context) { delete static_cast<c10::Storage*>(context); }, memory->device()));
  engine::DeferredStorages::instance().set_filled(storage);
}

}  // namespace fsdp
