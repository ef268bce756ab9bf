// SPDX-License-Identifier: Apache-2.0
/// Building a module that is larger than memory: inside a scope tensors have everything but
/// memory, and what would fill them is noted down. fully_shard() then fills one parameter at a time
/// and keeps this rank's slice. Values are those that the same code gives without the scope, bit
/// for bit, whatever the world size and the units: each random operator runs with the state that
/// its generator would have had.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace fsdp {

namespace engine {
class DeferredTape;
}

/// While it lives, operators of this thread that make tensors note down what they would do.
///
/// Code between may be anything that builds modules: layers, init functions, ties, casts, loops
/// over parameters. An operator that has to know values (item(), printing) gets them, by filling
/// the tensors that it takes. After the scope, operators that only write a deferred tensor, such as
/// another init function, are noted as well; any other fills it first, so a module that is never
/// sharded works too, at the price of its memory. Raw pointers to a deferred tensor throw.
///
/// Random numbers: the scope draws from its generators as they stand, and leaves them at new seeds
/// that follow from that, so that later draws do not repeat the weights'. Build models that belong
/// to one stream of random numbers in one scope.
///
/// *Thread safety*: a scope belongs to its thread. Scopes nest. *Example*:
///
///     auto model = fsdp::deferred_init([&] { return fsdp::models::GPT(config); });
///     auto sharded = fsdp::fully_shard(model, world, options);
/// @memory none for tensors; some hundred bytes per operator
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `make` in a scope and returns what it returns.
template <class Make>
auto deferred_init(Make&& make) {
  const DeferredInit scope;
  return std::forward<Make>(make)();
}

/// Whether the tensor's memory is still to be filled.
bool is_deferred(const at::Tensor& tensor);

/// Fills it now, for all its aliases. Does nothing to another tensor.
/// @memory the tensor's whole storage @throws what an operator that was noted down throws
void materialize(const at::Tensor& tensor);

}  // namespace fsdp
