// SPDX-License-Identifier: Apache-2.0
/// Which operators may take a rank's part of a parameter or of its gradient.
///
/// NOTE [operators on shards]
/// An optimizer that treats each element by itself is right on shards. One that mixes elements (a
/// norm for clipping, LAMB's trust ratio, LBFGS's dot products, a matrix product) sees this rank's
/// part only: each rank computes another number and the parts of one parameter drift apart. So
/// shards and their gradients carry the touch key, and the fallback refuses operators that mix.
/// The key is lost in an operator's result; where an element-wise step commonly comes before the
/// sum (`grad.abs().max()`, `w.square().sum()`), the result is marked as well. A copy
/// (`shard.clone()`) is plain. What the library does itself goes below the fallback, see
/// NOTE [shards refuse what mixes their elements].
#pragma once

#include <ATen/core/function_schema.h>

namespace fsdp::engine {

/// Whether a result of the operator depends on several elements of one of its inputs.
bool mixes_elements(const c10::FunctionSchema& schema);

/// Whether the operator's result still stands for a part: what it makes of each element is most
/// often summed up next.
bool is_first_half_of_a_norm(const c10::FunctionSchema& schema);

}  // namespace fsdp::engine
