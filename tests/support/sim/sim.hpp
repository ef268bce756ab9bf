// SPDX-License-Identifier: Apache-2.0
/// A simulated accelerator for tests, "sim:0" to "sim:7", on LibTorch's PrivateUse1 key: streams,
/// events, kernels in the order of their stream, memory that the host cannot touch, and a checker
/// that reports each two accesses to the same bytes which nothing orders. What must be right on an
/// accelerator is tested with it on machines that have none.
///
/// NOTE [What is simulated]
/// Device memory is one file in memory, mapped twice. Tensors have addresses of the first mapping,
/// which the host may not touch: an access ends with SIGSEGV and a backtrace. Kernels are
/// LibTorch's kernels of the CPU over the second mapping of the same bytes.
///
/// NOTE [Order on streams]
/// Each stream has a vector clock. A kernel joins the clock of its stream with what the host knows,
/// because it has waited for that, and ticks it. An event is a copy of its stream's clock. Each
/// range of bytes has its last writer and the readers since. An access is ordered if its clock has
/// seen the tick of the writer and, where it writes, of all readers. One that is not is reported,
/// whether or not the numbers came out right this time.
///
/// What it cannot show: kernels that wait for each other on one device, launch queues, aborts and
/// asynchronous errors, graphs, pools of memory, peer access, time, the numerics of other kernels.
/// A tensor's range is from its first to its last byte: two streams that write interleaved columns
/// would be a false alarm. What one thread has waited for, others on that device are taken to know.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::test::sim {

inline constexpr int kDevices = 8;

enum class Mode {
  kImmediate,  ///< a kernel has run when its launch returns: deterministic; clocks find the races
  kLate,       ///< a thread per stream, with delays: a race also gives wrong numbers
};

struct Config {
  Mode mode = Mode::kImmediate;
  int longest_delay_us = 2000;  ///< before a kernel, in Mode::kLate
};

/// Makes the devices, the first time; autograd must not have run before, for it makes a thread per
/// device then. Later calls change the mode, with all streams idle.
void start(const Config& config = {});
Mode mode();
/// What FSDP_SIM_MODE says, "late" or nothing.
Mode mode_of_environment();

inline c10::Device device(int index = 0) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

/// A rank's hold on a device. Autograd has one thread per device: of two ranks on one, one backward
/// would wait for the other. Makes the device the calling thread's current one.
class Claim {
 public:
  /// @throws c10::ValueError naming both, for a device that another rank of this process has
  Claim(int device, int rank);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  int device_;
};

struct Report {
  enum class Kind { kRace, kHostRace, kUseAfterFree };
  Kind kind;
  std::string text;  ///< both operators, streams and how many bytes
};
/// What was found since the last call, in order, each once; forgets it.
std::vector<Report> take_reports();

struct Counts {
  std::int64_t kernels = 0;
  std::int64_t copies = 0;
  std::int64_t host_waits = 0;      ///< the host waited for a stream or an event
  std::int64_t not_late = 0;        ///< kernels that ran at once in Mode::kLate
  std::int64_t allocations = 0;     ///< of device memory
  std::int64_t live_bytes = 0;      ///< of device memory
  std::int64_t stream_records = 0;  ///< Tensor::record_stream()
};
/// Of one device since the last call for it; what is live stays.
Counts take_counts(int device);

/// How much memory the device has from now on; more throws c10::OutOfMemoryError.
void limit_memory(int device, std::int64_t bytes);
inline constexpr std::int64_t kBytesPerDevice = std::int64_t{2} << 30;

}  // namespace fsdp::test::sim
