// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/module_buffers.hpp"

namespace fsdp::engine {

void ModuleBuffers::broadcast(comm::Transport& transport) const {
  for (const auto& [name, buffer] : saved_) {
    const at::Tensor dense = buffer.contiguous();
    transport.broadcast(dense, 0, {.name = "fully_shard: buffer " + name})->wait();
    if (!dense.is_same(buffer)) {
      buffer.copy_(dense);
    }
  }
}

void ModuleBuffers::cast(at::ScalarType dtype) {
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    if (is_low_[i]) {
      casts_.emplace_back(saved_[i].buffer, dtype);
      saved_[i].buffer = casts_.back().saved();
    }
  }
}

void ModuleBuffers::sync() {
  for (CastBuffer& buffer : casts_) {
    buffer.sync();
  }
}

}  // namespace fsdp::engine
