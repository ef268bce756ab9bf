// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::comm::detail {

/// Held where a transport calls LibTorch or its threads. The engine finds the units a program
/// touches through the DeferredInit key; tensors that a transport handles, and threads that inherit
/// this thread's state, must not look like a touch.
class DispatchGuard {
 public:
  DispatchGuard() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::DeferredInit};
};

}  // namespace fsdp::comm::detail
