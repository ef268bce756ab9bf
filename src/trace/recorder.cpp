// SPDX-License-Identifier: Apache-2.0
#include "fsdp/trace/recorder.hpp"

#include <chrono>
#include <utility>

namespace fsdp::trace {
namespace {

thread_local Recorder* recorder_of_thread = nullptr;

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

Recorder::~Recorder() {
  if (recorder_of_thread == this) {
    recorder_of_thread = nullptr;
  }
}

void Recorder::start() {
  recorder_of_thread = this;
  is_recording_.store(true, std::memory_order_relaxed);
}

void Recorder::stop() {
  is_recording_.store(false, std::memory_order_relaxed);
  if (recorder_of_thread == this) {
    recorder_of_thread = nullptr;
  }
  const std::lock_guard lock(mutex_);
  while (!open_.empty()) {
    Region region = std::move(open_.back());
    open_.pop_back();
    region.end_ns = now_ns();
    if (has_room()) {
      kept_.regions.push_back(std::move(region));
    }
  }
}

bool Recorder::has_room() {
  const bool fits = kept_.events.size() + kept_.regions.size() + kept_.samples.size() < limit_;
  kept_.dropped += fits ? 0 : 1;
  return fits;
}

void Recorder::record(const Event& event) {
  if (!is_recording()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (has_room()) {
    kept_.events.push_back(event);
  }
}

void Recorder::sample(const std::string& name, double value) {
  if (!is_recording()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (has_room()) {
    kept_.samples.push_back({name, now_ns(), value});
  }
}

void Recorder::open_region(const char* name) {
  if (!is_recording()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  open_.push_back({.name = name, .begin_ns = now_ns()});
}

void Recorder::close_region() {
  const std::lock_guard lock(mutex_);
  if (open_.empty()) {
    return;  // stop() has ended it
  }
  Region region = std::move(open_.back());
  open_.pop_back();
  region.end_ns = now_ns();
  if (has_room()) {
    kept_.regions.push_back(std::move(region));
  }
}

Recording Recorder::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(kept_, {});
}

Scope::Scope(const char* name)
    : recorder_(recorder_of_thread != nullptr && recorder_of_thread->is_recording()
                    ? recorder_of_thread
                    : nullptr) {
  if (recorder_ != nullptr) {
    recorder_->open_region(name);
  }
}

Scope::~Scope() {
  if (recorder_ != nullptr) {
    recorder_->close_region();
  }
}

}  // namespace fsdp::trace
