// SPDX-License-Identifier: Apache-2.0
/// Gradients of a backward: whether one is under way, what its end does with what arrived, and what
/// users have called with it. Memory and collectives are the sink's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/executor/health.hpp"
#include "engine/sink/grad_sink.hpp"
#include "engine/touch/backward.hpp"
#include "engine/touch/backward_target.hpp"
#include "engine/unit/grad_guards.hpp"
#include "engine/unit/module_layout.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/engine/shards.hpp"

namespace fsdp::engine {

/// *Thread safety*: under the engine's lock.
class Gradients {
 public:
  /// All that is passed outlives it.
  Gradients(const ModuleLayout& layout, const std::vector<FlatParts>& shards,
            memory::Ledger& ledger, Counters& counters, Health& health, const comm::Link& world);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Makes gradient shards and placeholders known to the dispatcher, and has gradients of the
  /// module's tensors handed to `backward`.
  void connect(const std::weak_ptr<TouchTarget>& touch,
               const std::weak_ptr<BackwardTarget>& backward);

  /// The module's tensors may have got values of another type, see NOTE [Gradients are handed over
  /// twice].
  void renew_gradient_hooks();

  // A backward, from its first touch or gradient to its end.

  bool is_open() const { return backward_ != Backward::kNone; }
  bool has_gradients() const { return backward_ == Backward::kHasGradients; }
  /// Returns whether memory was made, for units that train for the first time.
  bool open();
  /// An exception ended it.
  void note_death() { backward_ = Backward::kDied; }
  bool is_dead() const { return backward_ == Backward::kDied; }
  /// Forgets what was collected for a backward that died. @collective the replicas
  void bury();
  /// A forward takes the weight: what it or its shard was frozen or unfrozen to holds for both.
  void follow_requires_grad(int unit, int parameter) {
    sink_.follow_requires_grad(unit, parameter);
  }
  /// A gradient has come.
  void note_arrival() { backward_ = Backward::kHasGradients; }
  /// Takes the gradient that autograd left in a parameter's tensor.
  void collect(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in);
  /// What is to become of a backward's gradients. Nothing where there are none: autograd::grad
  /// reaches no parameter's accumulation.
  struct End {
    bool reduces = false;
    bool hands_out = false;
  };
  /// It has ended.
  End close();
  /// After the reductions: hands gradients out, upon which all ranks have ended this backward, or
  /// leaves them where later backwards add to them. @collective all ranks, in the former case
  void deliver(const End& end);
  /// Takes the placeholder out of the grad of a module's tensor.
  void take_out_guard(int unit, int parameter) { guards(unit).take_out(parameter); }
  /// Puts placeholders into the grads of the module's tensors. Returns whether it is the first
  /// time.
  bool set_guards();
  /// Calls what users have registered.
  void run_hooks();

  // The schedule's actions, and what it asks.

  void open_reduce(int bundle, int buffer) { sink_.open(bundle, buffer); }
  void start_reduce(int bundle, int buffer) { sink_.start_reduce(bundle, buffer); }
  void wait_reduce(int bundle) { sink_.wait_reduce(bundle); }
  bool trains(int unit) const { return sink_.trains(unit); }
  /// Whether the bundle is reduced in this backward.
  bool is_reduced(int bundle) const;
  bool defers(int bundle) const { return sink_.defers(bundle); }
  bool is_complete(int bundle) const { return sink_.is_complete(bundle); }

  // Between backwards.

  /// @throws Error kInvalidArgument, which names `where`
  void check_not_open(const char* where) const;
  void set_sync(GradientSync sync);
  void set_divisor(double divisor);
  double divisor() const { return sink_.divisor(); }
  /// @throws Error kInvalidArgument when gradients wait to be reduced, which a change of the unit's
  /// shards would miss
  void check_none_waits(int unit) const;
  std::int64_t first_bad_contribution() const { return sink_.first_bad_contribution(); }
  /// Whether gradients wait that only the engine knows.
  bool has_waiting() const { return !is_open() && sink_.has_deferred(); }
  /// Forgets all gradients, also those that wait.
  void zero();
  /// Makes what there is of a parameter's gradient zero.
  void zero(int unit, int parameter) { sink_.zero(unit, parameter); }
  /// Whether the grad of the module's tensor is what the engine left there.
  bool is_as_left(int unit, int parameter) const {
    return guards_[static_cast<std::size_t>(unit)].state(parameter) == ModuleGrad::kAsLeft;
  }
  /// Does to a parameter's gradient what the program did to the grad of the module's tensor.
  /// @throws Error kInvalidArgument when that is a gradient of the program's own
  void follow(int unit, int parameter);
  void follow_all();
  void set_loss_scaled() { is_loss_scaled_ = true; }
  /// Whether losses are scaled, so that gradients in float16 do not vanish.
  bool is_loss_scaled() const { return is_loss_scaled_; }
  /// What was put in the place of gradient shards is in them, see NOTE [Handles that stray].
  void bring_home() { sink_.take_over(); }
  std::uint64_t compare(HyperParameters of) { return sink_.presence().compare(std::move(of)); }
  void stop_comparing(std::uint64_t id) noexcept { sink_.presence().stop_comparing(id); }
  std::uint64_t add_hook(ReducedHook hook);
  void remove_hook(std::uint64_t id);
  /// After the group has recovered: there are none.
  void start_over();

  /// By unit; undefined where no parameter has ever trained.
  const std::vector<FlatParts>& grads() const { return sink_.grads(); }
  /// Bytes of the shards that have trained.
  std::int64_t trained_bytes() const;
  at::Tensor spare_memory(int unit) const { return sink_.spare_memory(unit); }

 private:
  enum class Backward {
    kNone,
    kOpen,
    kHasGradients,  ///< open, and one has arrived
    kDied,          ///< what it left is cleared at the next call
  };
  /// Takes out what is in the grads of the module's tensors; placeholders come back.
  void reset_grads();
  GradGuards& guards(int unit) { return guards_[static_cast<std::size_t>(unit)]; }

  const ModuleLayout& layout_;
  const std::vector<FlatParts>& shards_;
  Health& health_;
  GradSink sink_;
  std::vector<GradGuards> guards_;  ///< by unit; none before connect()
  std::vector<GradientHooks> gradient_hooks_;
  Backward backward_ = Backward::kNone;
  bool are_guards_set_ = false;
  bool is_loss_scaled_ = false;
  std::map<std::uint64_t, ReducedHook> hooks_;  ///< by id, which counts
  std::uint64_t last_hook_ = 0;
};

}  // namespace fsdp::engine
