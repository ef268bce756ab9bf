// SPDX-License-Identifier: Apache-2.0
#include "engine/deferred/deferred_storages.hpp"

#include <ATen/ops/empty.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/touch/touch.hpp"

namespace fsdp::engine {

namespace {

constexpr const char* kNoMemory =
    "the tensor was made in a fsdp::DeferredInit scope and has no memory yet. Operators fill it by "
    "themselves; for raw access call fsdp::materialize(tensor), or shard its module first";

/// All of them.
class DeferredStorages {
 public:
  static DeferredStorages& instance() {
    // Never destroyed: tensors may outlive static objects.
    static auto* storages = new DeferredStorages();
    return *storages;
  }
  void add(const c10::Storage& storage, DeferredEntry entry) {
    std::lock_guard lock(mutex_);
    known_.insert_or_assign(storage.unsafeGetStorageImpl(),
                            Known{storage.getWeakStorageImpl(), std::move(entry)});
    is_any_.store(true, std::memory_order_relaxed);
  }
  std::optional<DeferredEntry> find(const c10::StorageImpl* storage) {
    if (!is_any()) {
      return std::nullopt;
    }
    std::lock_guard lock(mutex_);
    const auto found = known_.find(storage);
    return found == known_.end() ? std::nullopt : std::optional(found->second.entry);
  }
  void set_filled(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    if (const auto found = known_.find(storage); found != known_.end()) {
      found->second.entry.tape.reset();
    }
  }
  void sweep() {
    std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& known) { return known.second.storage.expired(); });
    is_any_.store(!known_.empty(), std::memory_order_relaxed);
  }
  bool is_any() const { return is_any_.load(std::memory_order_relaxed); }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being reused
    DeferredEntry entry;
  };
  std::mutex mutex_;
  std::atomic<bool> is_any_ = false;
  std::unordered_map<const c10::StorageImpl*, Known> known_;
};

}  // namespace

std::optional<DeferredEntry> deferred_entry(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kTouchKey) || !tensor.has_storage()) {
    return std::nullopt;
  }
  return DeferredStorages::instance().find(tensor.storage().unsafeGetStorageImpl());
}

std::optional<DeferredEntry> pending(const at::Tensor& tensor) {
  std::optional<DeferredEntry> entry = deferred_entry(tensor);
  return entry.has_value() && entry->tape != nullptr ? entry : std::nullopt;
}

bool is_any_deferred() { return DeferredStorages::instance().is_any(); }
void sweep_deferred() { DeferredStorages::instance().sweep(); }
void set_filled(const c10::StorageImpl* storage) {
  DeferredStorages::instance().set_filled(storage);
}

void forbid_raw_access(c10::StorageImpl* storage) {
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kNoMemory));
}

NewDeferred make_deferred(const at::Tensor& meta, c10::Device device, bool may_be_written_by_hand,
                          const std::shared_ptr<DeferredTape>& tape) {
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
    forbid_raw_access(storage.unsafeGetStorageImpl());
  }
  const std::size_t id = tape->add_storage(bytes, device, block);
  DeferredStorages::instance().add(storage, {.tape = tape, .id = id});
  const at::Tensor like = at::empty({0}, at::TensorOptions(meta.scalar_type()).device(device));
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), like.key_set() | c10::DispatchKeySet(kTouchKey), meta.dtype());
  impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  return {at::Tensor(std::move(impl)), id};
}

DeferredView view_of(const at::Tensor& tensor, std::size_t storage) {
  return {storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

std::shared_ptr<DeferredTape>& current_tape() {
  thread_local std::shared_ptr<DeferredTape> tape;
  return tape;
}

void visit_tensors(const c10::IValue& value, std::size_t index,
                   const std::function<void(const ArgumentPosition&, const at::Tensor&)>& visit) {
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

}  // namespace fsdp::engine
