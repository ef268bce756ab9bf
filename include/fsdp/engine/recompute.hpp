// SPDX-License-Identifier: Apache-2.0
/// Activation checkpointing: a part of the model whose activations are not kept for backward but
/// computed again there. LibTorch has none in C++. Works on sharded modules and on plain ones.
/// Method: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); by hooks on what
/// autograd saves, as torch.utils.checkpoint(use_reentrant=False) does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

namespace engine::detail {

class RecomputedFrame;

/// While it lives, this thread's operators save nothing for backward but the promise to run `rerun`
/// again on `inputs`.
class RecomputeScope {
 public:
  using Rerun = std::function<void(const std::vector<at::Tensor>& inputs)>;
  RecomputeScope(const std::vector<at::Tensor>& inputs, Rerun rerun);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  std::shared_ptr<RecomputedFrame> frame_;
};

bool records_graph();

template <class T>
void take_tensor(T& value, std::vector<at::Tensor>& tensors) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    tensors.push_back(std::exchange(value, at::Tensor()));
  }
}

template <class T>
void put_tensor(T& value, const std::vector<at::Tensor>& tensors, std::size_t& next) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = tensors[next++];
  }
}

}  // namespace engine::detail

/// Returns fn(inputs...), without keeping what happens inside for backward: where backward first
/// needs it, `fn` runs again, with the same inputs and the same random numbers, so that gradients
/// are the same bit for bit. Call it where the model would call `fn`, for example around each
/// block:
///
///     for (auto& block : blocks) {
///       x = fsdp::recompute([&](at::Tensor h) { return block->forward(h); }, x);
///     }
///
/// `fn` must compute the same both times: no state that changes in between, no side effect that may
/// not happen twice (a BatchNorm moves its statistics twice). It lives until backward is over:
/// capture by value what goes out of scope before, such as a loop's counter. Inputs that are not
/// tensors are copied; tensors inside containers, and those that `fn` captures, are kept.
/// Results may be of any type. Checkpoints nest: the inner one's inputs are recomputed by the outer
/// one. Works with backward(), autograd::grad(), kept graphs and double backward; without grad mode
/// it just calls `fn`. In a sharded module the second run happens where the units are gathered for
/// backward anyhow: units that lie inside one call cost one gather more for all but the last of
/// them. Autocast is not restored for the second run.
/// @memory what autograd saves inside `fn`, at one call at a time, in backward; from forward on
/// the inputs
/// @throws Error kInvalidArgument, in backward, when the second run saves other tensors than the
/// first
template <class F, class... Inputs>
auto recompute(F fn, Inputs... inputs) {
  using engine::detail::put_tensor;
  if (!engine::detail::records_graph()) {
    return fn(std::move(inputs)...);
  }
  std::vector<at::Tensor> tensors;
  (engine::detail::take_tensor(inputs, tensors), ...);
  // Tensors among the inputs are held by the scope alone, in the way that autograd holds them.
  auto call = [fn = std::make_shared<F>(std::move(fn)),
               rest = std::make_tuple(std::move(inputs)...)](const std::vector<at::Tensor>& given) {
    auto arguments = rest;
    std::size_t next = 0;
    std::apply([&](auto&... argument) { (put_tensor(argument, given, next), ...); }, arguments);
    return std::apply(*fn, std::move(arguments));
  };
  const engine::detail::RecomputeScope scope(
      tensors, [call](const std::vector<at::Tensor>& given) { static_cast<void>(call(given)); });
  return call(tensors);
}

}  // namespace fsdp
