// SPDX-License-Identifier: Apache-2.0
/// What the parts of the simulated device share.
#pragma once

#include <c10/core/Allocator.h>

#include <functional>
#include <mutex>
#include <string>

#include "support/sim/launch.hpp"
#include "support/sim/sim.hpp"

namespace fsdp::test::sim::detail {

const Config& config();
inline bool is_late() { return config().mode == Mode::kLate; }

// memory.cpp

void map_memory();
bool is_device_address(const void* address);
bool is_pinned_address(const void* address);
int device_of_address(const void* address);
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
/// Once freed, the block waits for what the stream has been given by then.
void record_use(const void* address, int stream);
/// The number of the block that holds the address now, anew each time it is handed out; 0 outside
/// of all. Under lock().
std::uint64_t block_at(const void* address);

// order.cpp; all under lock().

std::unique_lock<std::mutex> lock();
/// A kernel begins on `stream`.
void stamp(const std::string& name, int stream, const std::vector<Access>& accesses);
/// The host reads or writes pinned memory.
void check_host_access(const std::string& name, const Access& access);
Clock& clock(int stream);
void merge(Clock& into, const Clock& from);
/// The host has waited for all that `seen` has. `device`: where, -1 for this thread alone.
void host_has_seen(int device, const Clock& seen);
/// What waits have shown to this thread, and to any of its current device.
Clock host_knowledge();
void report(Report::Kind kind, std::string text);
Counts& counts(int device);

// streams.cpp

int current_device();
void set_current_device(int device);
int current_stream(int device);
/// The host waits for a stream.
void synchronize(int stream);
/// The same for the machine's sake, from which the host learns no order.
void drain(int stream);
std::string stream_name(int stream);
void register_streams();

// queues.cpp: the threads of Mode::kLate.

void enqueue(int stream, std::function<void()> work);
bool is_idle(int stream);
void wait_until_idle(int stream);

// hooks.cpp, host_watch.cpp, operators.cpp

void register_hooks();
void watch_host();
void register_operators();

/// Whether this thread runs a kernel: its accesses are the kernel's.
bool& is_in_kernel();

}  // namespace fsdp::test::sim::detail
