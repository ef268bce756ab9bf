// SPDX-License-Identifier: Apache-2.0
/// The storage of one sharded parameter: full size always, memory only while its unit is gathered.
/// Without memory every access throws our text, also raw ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace fsdp::engine {

class FlatStorage {
 public:
  /// `freed_message` is what a raw access reads while there is no memory.
  FlatStorage(std::int64_t bytes, c10::Device device, std::string freed_message);

  /// Lends `bytes()` bytes at `data`; the storage does not own them.
  void install(void* data);
  void remove();
  void set_freed_message(std::string message);

  const c10::Storage& storage() const { return storage_; }
  const c10::StorageImpl* key() const { return storage_.unsafeGetStorageImpl(); }

  /// A tensor over this storage that carries the touch key, so that the dispatcher calls the touch
  /// fallback before every operator that takes it. `like` gives dtype, device and layout.
  at::Tensor tagged_view(const at::Tensor& like, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides) const;

 private:
  c10::Storage storage_;
  std::string freed_message_;
};

/// Elements [begin, begin + numel) of a flat tensor, with the touch key: the dispatcher calls the
/// touch fallback for them too. Shares memory and version counter with `flat`.
at::Tensor tagged_part(const at::Tensor& flat, std::int64_t begin, std::int64_t numel);

}  // namespace fsdp::engine
