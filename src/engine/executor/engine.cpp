// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/engine.hpp"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <string>
#include <utility>

#include "base/host_language.hpp"
#include "comm/on_host.hpp"
#include "engine/executor/initial_weights.hpp"
#include "engine/executor/refusals.hpp"
#include "engine/executor/setup.hpp"
#include "engine/touch/backward.hpp"
#include "engine/unit/home.hpp"
#include "engine/unit/named_shards.hpp"

namespace fsdp::engine {

using schedule::Pass;

std::shared_ptr<Engine> Engine::create(Partition partition, const World& world, Options options) {
  ensure_fallback();
  ensure_autograd_engine();
  const c10::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  const c10::Device device = partition.units.front().device;
  try {
    std::shared_ptr<Engine> engine(new Engine(std::move(partition), world, std::move(options)));
    engine->set_up();
    comm::wait_for_current_stream(device);  // streams that come later find all in place
    return engine;
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = "[fully_shard] rank " + std::to_string(world.rank()) +
                             " has too little memory on " + device.str() + ": " +
                             error.what_without_backtrace();
    world.publish_failure(text);
    fail(ErrorCode::kIo, text);
  }
}

Engine::Engine(Partition partition, const World& world, Options options)
    : world_(world),
      options_(std::move(options)),
      copier_(make_copier(options_, partition.units.front().device, counters_)),
      watch_(std::move(partition.watch)),
      script_watch_(std::move(partition.script_watch)),
      strangers_(std::move(partition.ignored)),
      buffers_(std::move(partition.buffers), std::move(partition.low_buffers)),
      layout_(Setup(std::move(partition), world_, options_, copier_.get()).layout()),
      promise_(layout_, options_, ledger_),
      events_(options_.debug.observer),
      health_(world_.job()),
      residency_(layout_, ledger_, counters_, health_, events_, world_.job(),
                 options_.debug.poison_freed),
      gradients_(layout_, residency_.shards(), ledger_, counters_, health_, world_.link()),
      executor_(layout_, counters_, health_, events_, residency_, gradients_, buffers_),
      full_scope_(layout_, ledger_, counters_, health_, residency_, executor_) {}

void Engine::set_up() {
  gradients_.set_divisor(options_.gradient_divisor.among(world_.size()));
  hand_over_weights(layout_, world_.transport(), options_.initial_weights, gradients_, residency_);
  residency_.connect(weak_from_this());
  gradients_.connect(weak_from_this(), weak_from_this());
  full_scope_.connect(weak_from_this());
  if (options_.initial_weights == InitialWeights::kBroadcast) {
    buffers_.broadcast(world_.transport());
  }
  if (options_.precision.buffers.has_value()) {
    buffers_.cast(*options_.precision.buffers);
  }
  renew_promise();
}

void Engine::start_over_if_stale() {
  if (!health_.is_stale()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  health_.renew();
  residency_.start_over();
  gradients_.start_over();
  executor_.start_over();
  full_scope_.start_over();
}

void Engine::check_usable() {
  start_over_if_stale();
  health_.check();
  full_scope_.check();
}

std::unique_lock<std::recursive_mutex> Engine::enter() {
  std::unique_lock lock(mutex_);
  check_usable();
  if (gradients_.is_dead()) {
    executor_.abort_backward();
  }
  return lock;
}

void Engine::renew_promise() {
  promise_.renew(gradients_.trained_bytes() * options_.memory.moments);
}

// --- touches ---------------------------------------------------------------------------------

void Engine::touch(std::span<const int> units, std::span<const Hit> hits, const char* op,
                   std::uint64_t signature) {
  const auto lock = enter();
  const bool records_graph = c10::GradMode::is_enabled();
  const c10::NoGradGuard no_grad;
  check_touch(layout_, hits, op, full_scope_.takes_writes());
  full_scope_.adopt();
  for (const Hit& hit : hits) {
    if (hit.is_write) {
      full_scope_.expect_other(
          {.unit = hit.unit, .parameter = hit.parameter});  // set_(), resize_()
    }
  }
  Pass pass = Pass::kBackward;
  if (current_graph_task() >= 0 || gradients_.is_open()) {
    open_backward();
  } else {
    watch_module(hits.front());
    executor_.begin_forward();
    pass = records_graph ? Pass::kForward : Pass::kEvaluation;
    if (pass == Pass::kForward) {
      for (const Hit& hit : hits) {
        gradients_.follow_requires_grad(hit.unit, hit.parameter);
      }
      if (gathers_float16(options_) && !options_.precision.allow_unscaled &&
          !gradients_.is_loss_scaled()) {
        refuse_unscaled_loss();
      }
      promise_.print(world_.rank(), world_.size(), gradients_.divisor());
    }
  }
  residency_.note_taken(hits, records_graph);
  executor_.take(units, pass, {.op = op, .signature = signature});
}

/// At the first touch of a forward. Nothing says where one ends that no backward follows: where the
/// weight that began the last one is taken again, another has begun.
void Engine::watch_module(const Hit& first) {
  const bool is_again = first.unit == watched_at_.unit && first.parameter == watched_at_.parameter;
  if ((is_again || executor_.expects_changes()) && !full_scope_.is_open()) {
    check_module();
    watched_at_ = {.unit = first.unit, .parameter = first.parameter};
  }
}

void Engine::check_module() const {
  watch_.check();
  script_watch_.check();
}

void Engine::release(std::span<const int> units) noexcept {
  const std::lock_guard lock(mutex_);
  if (health_.has_failed() || health_.is_stale()) {
    return;
  }
  try {
    executor_.release(units);
  } catch (...) {
    // Unpinning runs in a destructor, maybe while another error unwinds: the next call throws it.
    health_.note(std::current_exception());
  }
}

void Engine::weight_viewed(int unit, int parameter) {
  const std::lock_guard lock(mutex_);
  if (!gradients_.is_open()) {
    gradients_.follow_requires_grad(unit, parameter);
  }
}

void Engine::weight_replaced(int unit, int parameter) {
  const std::lock_guard lock(mutex_);
  full_scope_.expect_other({.unit = unit, .parameter = parameter});
}

void Engine::shard_written(int unit) {
  const std::lock_guard lock(mutex_);
  check_usable();
  full_scope_.check_takes_shards(unit);
  if (gradients_.has_waiting()) {
    follow_module_grads();
    gradients_.check_none_waits(unit);
  }
  residency_.announce_write(unit);
  executor_.expect_changes();
}

void Engine::refuse_mixing(int unit, std::int64_t begin, bool is_gradient, const char* op) {
  const std::vector<FlatParts>& parts = is_gradient ? gradients_.grads() : residency_.shards();
  engine::refuse_mixing(layout_.at(unit), parts[static_cast<std::size_t>(unit)], begin, is_gradient,
                        op);
}

void Engine::refuse_grad_use(const Hit& hit, const char* op) {
  engine::refuse_grad_use(layout_, hit, op);
}

void Engine::zero_grad_of(const Hit& hit) {
  const auto lock = enter();
  const OwnShards own;
  gradients_.check_not_open("zero_grad");
  gradients_.zero(hit.unit, hit.parameter);
}

void Engine::follow_requires_grad(std::span<const int> units) {
  const std::lock_guard lock(mutex_);
  for (int unit : units) {
    for (int i = 0; i < layout_.at(unit).layout->parameters(); ++i) {
      gradients_.follow_requires_grad(unit, i);
    }
  }
}

std::vector<std::vector<int>> Engine::expected_run(std::span<const int> units) {
  const auto lock = enter();
  return executor_.expected_run(units,
                                c10::GradMode::is_enabled() ? Pass::kForward : Pass::kEvaluation);
}

// --- backward --------------------------------------------------------------------------------

void Engine::open_backward() {
  if (gradients_.is_open()) {
    return;
  }
  follow_module_grads();
  join_backward(weak_from_this());
  if (gradients_.open()) {
    renew_promise();
  }
  strangers_.begin();
  executor_.begin_backward();
}

void Engine::expect_gradient(int unit, int parameter) {
  const auto lock = enter();
  const c10::NoGradGuard no_grad;
  open_backward();
  strangers_.look();
  gradients_.take_out_guard(unit, parameter);
}

void Engine::gradient(int unit, int parameter, const at::Tensor& tensor, bool is_stand_in) {
  if (!tensor.grad().defined()) {
    return;  // frozen since the forward that took it
  }
  const auto lock = enter();
  const c10::NoGradGuard no_grad;
  open_backward();
  residency_.check_in_shards(unit, parameter, "backward");
  gradients_.note_arrival();
  if (executor_.is_touched_by_gradient(unit)) {
    touch_briefly(*this, {&unit, 1}, "its gradient");
  }
  executor_.gradient(unit, parameter, tensor, is_stand_in);
}

void Engine::end_backward() {
  const std::lock_guard lock(mutex_);
  const c10::NoGradGuard no_grad;
  check_usable();
  const bool has_gradients = gradients_.has_gradients();
  executor_.end_backward();
  if (has_gradients) {
    end_step();
  } else {
    strangers_.begin();
  }
}

void Engine::end_step() {
  const bool is_first = !std::exchange(has_trained_, true);
  const std::vector<ModuleLayout::Index> left_out = residency_.left_out(/*ever=*/is_first);
  strangers_.end(layout_, left_out, /*tells=*/world_.rank() == 0);
  residency_.tell_of_stand_ins(left_out, /*tells=*/world_.rank() == 0);
  residency_.end_step();
  if (!full_scope_.is_open()) {
    check_module();  // a forward that began with another weight than the last was not looked at
  }
}

void Engine::backward_died() noexcept {
  const std::lock_guard lock(mutex_);
  gradients_.note_death();
}

void Engine::shard_grad_asked(int unit, int parameter) {
  // Without the lock: the tensors' grads are the asker's to read, and mostly are as they were left.
  if (gradients_.is_as_left(unit, parameter)) {
    return;
  }
  const base::OutsideHost outside;  // a binding asks by a property, with its lock
  const std::lock_guard lock(mutex_);
  const OwnShards own;
  if (!gradients_.is_open()) {
    gradients_.follow(unit, parameter);
  }
}

void Engine::follow_module_grads() {
  const OwnShards own;
  gradients_.follow_all();
}

void Engine::set_gradient_sync(GradientSync sync) {
  const auto lock = enter();
  follow_module_grads();
  gradients_.set_sync(sync);
  renew_promise();
}

void Engine::set_gradient_divisor(double divisor) {
  const std::lock_guard lock(mutex_);
  check_usable();
  gradients_.set_divisor(divisor);
}

std::uint64_t Engine::add_reduced_hook(ReducedHook hook) {
  const std::lock_guard lock(mutex_);
  return gradients_.add_hook(std::move(hook));
}

void Engine::remove_reduced_hook(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  gradients_.remove_hook(id);
}

// --- shards ----------------------------------------------------------------------------------

std::vector<NamedShard> Engine::named_shards() const {
  return engine::named_shards(layout_, residency_.shards());
}

std::vector<FlatShard> Engine::flats() {
  const std::lock_guard lock(mutex_);
  check_usable();
  const c10::NoGradGuard no_grad;
  residency_.bring_home();
  gradients_.bring_home();
  return flat_shards(layout_, residency_.shards(), gradients_.grads());
}

void Engine::mark_written() {
  for (int unit = 0; unit < layout_.count(); ++unit) {
    shard_written(unit);
  }
}

void Engine::zero_grad() {
  const auto lock = enter();
  gradients_.zero();
}

bool Engine::has_waiting_gradients() const {
  const std::lock_guard lock(mutex_);
  return gradients_.has_waiting();
}

std::int64_t Engine::first_bad_contribution() const {
  const std::lock_guard lock(mutex_);
  return gradients_.first_bad_contribution();
}

void Engine::set_loss_scaled() {
  const std::lock_guard lock(mutex_);
  gradients_.set_loss_scaled();
}

std::uint64_t Engine::compare(HyperParameters of) {
  const std::lock_guard lock(mutex_);
  return gradients_.compare(std::move(of));
}

void Engine::stop_comparing(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  gradients_.stop_comparing(id);
}

void Engine::hold_memory(memory::Kind kind, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  promise_.hold(kind, bytes);
}

void Engine::release_memory(memory::Kind kind, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  promise_.release(kind, bytes);
}

// --- what fsdp::Sharded asks -----------------------------------------------------------------

memory::Bytes Engine::promise() const {
  const std::lock_guard lock(mutex_);
  return promise_.bytes();
}

Counters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.prefetch_misses = executor_.misses() - counters_.prefetch_misses;
  return counters;
}

void Engine::reset_counters() {
  const std::lock_guard lock(mutex_);
  counters_ = {.prefetch_misses = executor_.misses()};
}

bool Engine::is_unsharded(int unit) {
  const std::lock_guard lock(mutex_);
  start_over_if_stale();
  return executor_.is_unsharded(unit);
}

const std::vector<NamedBuffer>& Engine::buffers() {
  const std::lock_guard lock(mutex_);
  check_module();
  executor_.expect_changes();  // the caller may write them
  buffers_.sync();
  return buffers_.saved();
}

void Engine::reshard() {
  const auto lock = enter();
  executor_.expect_changes();
  executor_.reshard();
}

std::uint64_t Engine::begin_full(bool writeback) {
  const auto lock = enter();
  const c10::NoGradGuard no_grad;
  gradients_.check_not_open("full_parameters");
  residency_.bring_home();
  const std::uint64_t scope = full_scope_.begin(writeback);
  gradients_.renew_gradient_hooks();
  return scope;
}

void Engine::end_full(std::uint64_t scope) noexcept {
  const std::lock_guard lock(mutex_);
  const c10::NoGradGuard no_grad;
  if (!health_.is_stale() && !health_.has_failed()) {
    full_scope_.end(scope);
    gradients_.renew_gradient_hooks();
    executor_.expect_changes();  // what happened inside of it was not looked at
  }
}

}  // namespace fsdp::engine
