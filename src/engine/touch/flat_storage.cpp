// SPDX-License-Identifier: Apache-2.0
#include "engine/touch/flat_storage.hpp"

#include <utility>

#include "engine/touch/touch.hpp"

namespace fsdp::engine {

FlatStorage::FlatStorage(std::int64_t bytes, c10::Device device, std::string freed_message)
    : storage_(c10::Storage::use_byte_size_t(), c10::SymInt(bytes), c10::DataPtr(nullptr, device),
               /*allocator=*/nullptr,
               /*resizable=*/false),
      freed_message_(std::move(freed_message)) {
  remove();
}

void FlatStorage::install(void* data) {
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  impl->clear_data_ptr_access_error_msg_();
  impl->set_data_ptr_noswap(c10::DataPtr(data, impl->device()));
}

void FlatStorage::remove() {
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(c10::DataPtr(nullptr, impl->device()));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(freed_message_);
}

void FlatStorage::set_freed_message(std::string message) {
  freed_message_ = std::move(message);
  remove();
}

at::Tensor FlatStorage::tagged_view(const at::Tensor& like, c10::IntArrayRef sizes,
                                    c10::IntArrayRef strides) const {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage_),
                                                   like.key_set() | c10::DispatchKeySet(kTouchKey),
                                                   like.dtype());
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor tagged_part(const at::Tensor& flat, std::int64_t begin, std::int64_t numel) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(flat.storage()),
      flat.key_set() | c10::DispatchKeySet(kTouchKey), flat.dtype());
  impl->set_storage_offset(flat.storage_offset() + begin);
  impl->set_sizes_contiguous({numel});
  impl->set_version_counter(flat.unsafeGetTensorImpl()->version_counter());
  return at::Tensor(std::move(impl));
}

}  // namespace fsdp::engine
