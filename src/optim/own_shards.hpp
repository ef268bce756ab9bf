// SPDX-License-Identifier: Apache-2.0
/// The library's own access to shards.
///
/// NOTE [shards refuse what mixes their elements]
/// A norm or a sum over a rank's part is no norm of the parameter, so the dispatcher's fallback
/// refuses such operators on shards and their gradients (src/engine/touch/shard_operators.hpp).
/// What this library does itself is right by construction and passes below the fallback: it
/// excludes the touch key. Then nobody tells the engine of writes, so they are announced before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#include "fsdp/engine/fully_shard.hpp"

namespace fsdp::optim {

/// For as long as it lives, operators on this thread take shards as plain tensors, and autograd
/// records nothing. See NOTE [shards refuse what mixes their elements].
class OwnShards {
 public:
  OwnShards();

 private:
  c10::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_touch_;
};

/// Tells the engine that shards of this unit are about to be written, also where they are empty.
/// Outside of OwnShards. @collective with shards in shared memory that were read since backward
void announce_write(const at::Tensor& shard);

/// Whether `next` begins in memory right where `numel` elements from the start of `first` end.
bool follows(const at::Tensor& first, std::int64_t numel, const at::Tensor& next);
/// `numel` elements of memory from the start of `first` on.
at::Tensor stretched(const at::Tensor& first, std::int64_t numel);

}  // namespace fsdp::optim
