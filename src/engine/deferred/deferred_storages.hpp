// SPDX-License-Identifier: Apache-2.0
/// The storages of deferred tensors in the process, and what is often asked of such tensors.
/// See NOTE [Deferred initialisation].
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "engine/deferred/deferred_tape.hpp"

namespace fsdp::engine {

struct DeferredEntry {
  std::shared_ptr<DeferredTape> tape;  ///< null once the storage is filled
  std::size_t id = 0;                  ///< of the storage on the tape
};

/// Of a storage that came from a DeferredInit scope; nothing for another tensor.
std::optional<DeferredEntry> deferred_entry(const at::Tensor& tensor);
/// The same, if it is still to be filled.
std::optional<DeferredEntry> pending(const at::Tensor& tensor);

/// Whether any deferred tensor may be alive.
bool is_any_deferred();
/// Forgets storages that are gone.
void sweep_deferred();
void set_filled(const c10::StorageImpl* storage);

/// From here on raw access to the storage throws: its content is what the tape says.
void forbid_raw_access(c10::StorageImpl* storage);

/// A tensor without memory over a new storage of the tape, of the geometry of `meta`. What code may
/// write by hand gets memory for that, which is taken as it is written.
struct NewDeferred {
  at::Tensor tensor;
  std::size_t id;
};
NewDeferred make_deferred(const at::Tensor& meta, c10::Device device, bool may_be_written_by_hand,
                          const std::shared_ptr<DeferredTape>& tape);

/// What of a tensor is enough to look at its storage in the same way.
DeferredView view_of(const at::Tensor& tensor, std::size_t storage);

/// The tape of the scope that this thread is in, null outside.
std::shared_ptr<DeferredTape>& current_tape();

/// Calls `visit` for each tensor of an argument or result, and for those in its list.
void visit_tensors(const c10::IValue& value, std::size_t index,
                   const std::function<void(const ArgumentPosition&, const at::Tensor&)>& visit);

}  // namespace fsdp::engine
