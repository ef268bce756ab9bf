// SPDX-License-Identifier: Apache-2.0
/// What failures leave behind, and how an engine begins anew once the group has recovered.
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <utility>

#include "engine/executor/engine.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Whether the ranks have parted, rather than one having failed by itself.
bool is_of_the_group(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kPeerFailed ||
         code == ErrorCode::kMismatch;
}

}  // namespace

bool Engine::is_stale() const { return communicator_.generation() != generation_; }

void Engine::check_usable() {
  std::lock_guard lock(mutex_);
  if (is_stale()) {
    start_over();
  }
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

/// Called where an exception was caught: from here on every call throws it. The others are told,
/// because what they wait for will not come.
void Engine::record_failure() {
  failure_ = std::current_exception();
  std::string text;
  try {
    throw;
  } catch (const Error& error) {
    text = error.what();
    if (is_of_the_group(error.code())) {
      failure_ = std::make_exception_ptr(Error(
          error.code(), error.text() + ". Restart the job, or, if every process still runs, call "
                                       "world.recover() on all ranks"));
    }
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an exception that is no std::exception";
  }
  communicator_.publish_failure(text);
}

/// The group has recovered. Every rank begins where all are alike, as after fully_shard() but for
/// the values of the shards: nothing gathered, no gradients, no recorded order. Local.
void Engine::start_over() {
  c10::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_touch(kTouchKey);
  generation_ = communicator_.generation();
  failure_ = nullptr;
  store_->drop_works();
  sink_->start_over();
  for (Unit& unit : units_) {
    hide_whole(unit);
    unit.rest();
    unit.was_in_forward = false;
    unit.has_secondary = false;
    unit.is_slice_current = false;
    for (Parameter& parameter : unit.parameters) {
      parameter.tensor.mutable_grad().reset();  // one that was refused may have stayed
    }
  }
  counters_.prefetch_misses -= schedule_->misses();
  make_schedule();
  if (has_finished_a_backward_) {
    set_guard_grads();
  }
  is_backward_open_ = false;
  is_backward_dead_ = false;
  has_gradients_ = false;
  is_forward_checked_ = false;
  is_read_since_fence_ = false;  // recover() was a fence
  full_buffers_.clear();
  ledger_.remove(memory::Kind::kFullScope, std::exchange(full_bytes_, 0));
  full_depth_ = 0;
  full_writeback_ = false;
}

}  // namespace fsdp::engine
