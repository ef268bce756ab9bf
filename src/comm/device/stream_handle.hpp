// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>

namespace fsdp::comm::detail {

/// What the maker's libraries call this stream: a cudaStream_t.
inline void* handle_of(const c10::Stream& stream) { return stream.native_handle(); }

}  // namespace fsdp::comm::detail
