// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/deferred_init.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "engine/deferred/deferred_storages.hpp"
#include "engine/deferred/deferred_tape.hpp"
#include "engine/touch/touch.hpp"

namespace fsdp {

struct DeferredInit::State {
  explicit State(std::shared_ptr<engine::DeferredTape> tape)
      : outer(std::exchange(engine::current_tape(), std::move(tape))), include(engine::kTouchKey) {}
  ~State() { engine::current_tape() = outer; }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<engine::DeferredTape> outer;
  c10::impl::IncludeDispatchKeyGuard include;
};

DeferredInit::DeferredInit() {
  engine::ensure_fallback();
  engine::sweep_deferred();
  const bool is_outermost = engine::current_tape() == nullptr;
  state_ = std::make_unique<State>(is_outermost ? std::make_shared<engine::DeferredTape>()
                                                : engine::current_tape());
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
  engine::set_filled(storage);
}

}  // namespace fsdp
