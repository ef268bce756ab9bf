// SPDX-License-Identifier: Apache-2.0
/// What is used of NCCL, declared by hand from its documentation (version 2.18 on), so that
/// building needs none of its files: the library is opened at run time. See nccl_library.hpp.
#pragma once

#include <climits>
#include <cstddef>

namespace fsdp::comm::detail::nccl {

/// A communicator, and a stream of the device.
struct OpaqueCommunicator;
using Handle = OpaqueCommunicator*;
using StreamHandle = void*;

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

enum ReduceOperation : int { kSum = 0 };

struct UniqueId {
  static constexpr std::size_t kBytes = 128;
  char bytes[kBytes];
};

/// As of 2.18; newer versions read `size` and take the rest for not set.
struct Config {
  static constexpr int kUnset = INT_MIN;
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUnset;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};
static_assert(sizeof(Config) == 48 && offsetof(Config, net_name) == 32);

/// 2.18.0, as ncclGetVersion() counts.
inline constexpr int kOldestVersion = 21800;

/// The entry points. Each is called as its name in NCCL's documentation says.
struct Functions {
  Result (*get_version)(int* version) = nullptr;
  Result (*get_unique_id)(UniqueId* id) = nullptr;
  Result (*init_rank)(Handle* made, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  Result (*finalize)(Handle) = nullptr;
  Result (*destroy)(Handle) = nullptr;
  Result (*abort)(Handle) = nullptr;
  Result (*get_async_error)(Handle, Result* state) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(Handle) = nullptr;
  Result (*all_gather)(const void* src, void* dst, std::size_t src_count, DataType, Handle,
                       StreamHandle) = nullptr;
  Result (*reduce_scatter)(const void* src, void* dst, std::size_t dst_count, DataType,
                           ReduceOperation, Handle, StreamHandle) = nullptr;
  Result (*broadcast)(const void* src, void* dst, std::size_t count, DataType, int root, Handle,
                      StreamHandle) = nullptr;
};

}  // namespace fsdp::comm::detail::nccl
