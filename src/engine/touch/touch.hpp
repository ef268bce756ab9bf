// SPDX-License-Identifier: Apache-2.0
/// Touching as a source of "this unit is needed now".
///
/// NOTE [Units are found by touch]
/// torch::nn::Module has no hooks in C++, and its tensors must keep their identity. So the weights
/// are marked: each parameter's TensorImpl carries kTouchKey, a dispatch key that c10 keeps for
/// extensions, and one boxed fallback is registered for it. The dispatcher calls that fallback
/// before every operator that takes a weight (views, detached aliases and autograd's saved
/// variables inherit the key) and before no other. It finds the units by StorageImpl, has them
/// gathered and pinned, runs the operator with the key excluded, so that nested operators pass
/// straight through, and unpins. RecordFunction would swallow exceptions, cost every operator, and
/// miss threads; see docs/decisions/0001-units-found-by-touch.md.
///
/// One fallback per key and process: deferred initialisation shares this one, see deferred.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace fsdp::engine {

inline constexpr c10::DispatchKey kTouchKey = c10::DispatchKey::DeferredInit;

/// A weight that an operator takes.
struct Hit {
  int unit;
  int parameter;  ///< index within the unit
  bool is_write;  ///< the operator's schema says that it writes it
  bool operator==(const Hit&) const = default;
};

/// What a touched storage stands for.
enum class StorageRole {
  kWeight,
  kGradGuard,  ///< the placeholder in a parameter's grad: any use is a mistake
  kShard,      ///< a rank's own shard, which is always there: writes to it are reported
  kGradShard,  ///< a rank's own gradient shard; see NOTE [operators on shards] for both
};

/// How mixed precision runs an operator that takes a unit's weights.
struct OperandCast {
  bool operands = false;  ///< its other floating-point tensors get the weights' type
  std::optional<at::ScalarType> results = {};  ///< what comes out gets this one
};

/// Who is told of touches: an engine.
class TouchTarget {
 public:
  virtual ~TouchTarget() = default;
  /// Makes the units of `hits` whole and pins them. `units` is ascending, without duplicates.
  virtual void touch(std::span<const int> units, std::span<const Hit> hits, const char* op,
                     std::uint64_t signature) = 0;
  /// Unpins. Called also when the operator threw; what fails here is thrown by the next touch.
  virtual void release(std::span<const int> units) noexcept = 0;
  /// An operator that reads no memory takes a weight, and autograd may record it.
  virtual void weight_viewed(int unit, int parameter) = 0;
  /// set_data() is about to give a weight of the module other memory.
  virtual void weight_replaced(int unit, int parameter) = 0;
  /// An operator is about to write this rank's shard of `unit`, be it through data(), which version
  /// counters do not see (torch::optim::SGD steps that way).
  virtual void shard_written(int unit) = 0;
  /// Fixed once the module is sharded: asked without a lock.
  virtual OperandCast cast_of(int unit) const = 0;
  /// Throws the error that says what to do instead of mixing the elements of a shard, or of its
  /// gradient, that begins at element `begin` of the unit's flat one.
  [[noreturn]] virtual void refuse_mixing(int unit, std::int64_t begin, bool is_gradient,
                                          const char* op) = 0;
  /// Throws the error that says what to do instead.
  [[noreturn]] virtual void refuse_grad_use(const Hit& hit, const char* op) = 0;
  /// The program zeroes the grad of the module's tensor.
  virtual void zero_grad_of(const Hit& hit) = 0;
};

/// Touches units as an operator called `op` would that takes their weights and ends at once.
void touch_briefly(TouchTarget& target, std::span<const int> units, const char* op);

/// Registers the fallback, once per process.
void ensure_fallback();

/// Makes a storage known to the dispatcher for as long as this lives; the storage must live longer.
/// Move-only.
class Registration {
 public:
  Registration(const c10::StorageImpl* storage, std::weak_ptr<TouchTarget> target, int unit,
               int parameter, StorageRole role);
  ~Registration();
  Registration(Registration&& other) noexcept;
  Registration& operator=(Registration&& other) noexcept;

 private:
  const c10::StorageImpl* storage_;
};

/// Whether a storage belongs to a sharded parameter of `target`.
bool is_registered(const c10::StorageImpl* storage, const TouchTarget* target);

}  // namespace fsdp::engine
