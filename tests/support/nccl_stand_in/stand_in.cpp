// SPDX-License-Identifier: Apache-2.0
/// The library; see control.hpp. It is opened by the program that has the simulated devices, and
/// finds them there.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/nccl/nccl_api.hpp"
#include "support/nccl_stand_in/control.hpp"
#include "support/sim/launch.hpp"
#include "support/sim/runtime.hpp"

namespace fsdp::test::nccl_stand_in {
namespace {

namespace nccl = comm::detail::nccl;
using nccl::DataType;
using nccl::Result;

// ---- what goes wrong --------------------------------------------------------------------------

class Plans final : public Control {
 public:
  void plan(Fault fault) override {
    const std::lock_guard lock(mutex_);
    faults_.push_back(std::move(fault));
  }
  void release() override {
    {
      const std::lock_guard lock(mutex_);
      faults_.clear();
      ++releases_;
    }
    changed_.notify_all();
  }
  std::vector<std::string> take_violations() override { return take(violations_); }
  std::vector<std::string> take_calls() override { return take(calls_); }
  int live_communicators() override { return live; }
  void set_version(int version) override { version_ = version; }

  int version() const { return version_; }
  void violation(const std::string& text) {
    const std::lock_guard lock(mutex_);
    violations_.push_back(text);
  }

  /// The fault that is planned for this call, which is noted.
  std::optional<Fault> next(const std::string& call, int rank) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
    for (auto it = faults_.begin(); it != faults_.end(); ++it) {
      if (it->call == call && (it->rank == -1 || it->rank == rank)) {
        if (it->skip-- > 0) {
          continue;
        }
        const Fault fault = *it;
        faults_.erase(it);
        return fault;
      }
    }
    return std::nullopt;
  }

  /// Until release(), or `until` holds, which is looked at often.
  template <class Until>
  void hang(Until until) {
    std::unique_lock lock(mutex_);
    const int before = releases_;
    while (releases_ == before && !until()) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
    }
  }

  std::atomic<int> live = 0;

 private:
  std::vector<std::string> take(std::vector<std::string>& from) {
    const std::lock_guard lock(mutex_);
    return std::exchange(from, {});
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Fault> faults_;
  std::vector<std::string> violations_, calls_;
  int releases_ = 0;
  std::atomic<int> version_ = 23007;
};

Plans& plans() {
  static auto* all = new Plans;  // threads that were left behind may outlive main()
  return *all;
}

// ---- communicators ----------------------------------------------------------------------------

/// One rank's part of a collective.
struct Part {
  std::string text;  ///< what it is, equal on all ranks
  const void* src = nullptr;
};

struct Meeting {
  std::map<int, Part> parts;
  int done = 0;
};

struct Group {
  explicit Group(int ranks) : size(ranks) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, int> device_of_rank;
  std::map<std::uint64_t, std::shared_ptr<Meeting>> meetings;
};

struct Communicator {
  std::shared_ptr<Group> group;
  int rank = 0;
  int device = 0;
  std::uint64_t sequence = 0;
  std::atomic<bool> is_aborted = false;
  std::atomic<bool> is_finalized = false;
  std::atomic<int> error = nccl::kSuccess;
  std::mutex mutex;
  std::string last_error;

  void set_error(Result result, const std::string& text) {
    const std::lock_guard lock(mutex);
    error = result;
    last_error = text;
  }
};

std::mutex all_mutex;
std::map<std::string, std::shared_ptr<Group>>& groups() {
  static auto* all = new std::map<std::string, std::shared_ptr<Group>>;
  return *all;
}
/// Kept for ever, so that a use after the end is seen in place of a crash.
std::set<Communicator*>& communicators() {
  static auto* all = new std::set<Communicator*>;
  return *all;
}

Communicator* known(nccl::Handle handle, const char* call) {
  auto* communicator = reinterpret_cast<Communicator*>(handle);
  {
    const std::lock_guard lock(all_mutex);
    if (!communicators().contains(communicator)) {
      plans().violation(std::string(call) + " of what is no communicator");
      return nullptr;
    }
  }
  if (communicator->is_aborted) {
    plans().violation(std::string(call) + " after abort or destroy");
    return nullptr;
  }
  return communicator;
}

/// Carries out a planned fault. Nothing: go on.
std::optional<Result> disturb(const char* call, Communicator* communicator, int rank,
                              bool* hangs_on_device = nullptr) {
  const auto fault = plans().next(call, rank);
  if (!fault) {
    return std::nullopt;
  }
  const auto result = static_cast<Result>(fault->result);
  switch (fault->kind) {
    case Fault::Kind::kFails:
      if (communicator != nullptr) {
        communicator->set_error(result, "planned");
      }
      return result;
    case Fault::Kind::kHangs:
      plans().hang([&] { return communicator != nullptr && communicator->is_aborted; });
      return result;
    case Fault::Kind::kHangsForEver: plans().hang([] { return false; }); return result;
    case Fault::Kind::kHangsOnDevice:
      if (hangs_on_device != nullptr) {
        *hangs_on_device = true;
      }
      return std::nullopt;
    case Fault::Kind::kFailsLater:
      if (communicator != nullptr) {
        communicator->set_error(result, "planned");
      }
      return std::nullopt;
  }
  return std::nullopt;
}

// ---- collectives ------------------------------------------------------------------------------

std::size_t size_of(DataType type) {
  switch (type) {
    case nccl::kInt8:
    case nccl::kUint8: return 1;
    case nccl::kFloat16:
    case nccl::kBFloat16: return 2;
    case nccl::kInt32:
    case nccl::kFloat32: return 4;
    case nccl::kInt64:
    case nccl::kFloat64: return 8;
  }
  return 0;
}

template <class T>
void add(void* dst, const void* src, std::size_t count) {
  auto* to = static_cast<T*>(dst);
  const auto* from = static_cast<const T*>(src);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(to[i] + from[i]);
  }
}

void add(void* dst, const void* src, std::size_t count, DataType type) {
  switch (type) {
    case nccl::kFloat32: return add<float>(dst, src, count);
    case nccl::kFloat64: return add<double>(dst, src, count);
    case nccl::kBFloat16: return add<c10::BFloat16>(dst, src, count);
    case nccl::kFloat16: return add<c10::Half>(dst, src, count);
    case nccl::kInt32: return add<std::int32_t>(dst, src, count);
    case nccl::kInt64: return add<std::int64_t>(dst, src, count);
    default: return add<std::uint8_t>(dst, src, count);
  }
}

using Sources = std::vector<const void*>;
using Move = std::function<void(const Sources&)>;

/// In the kernel: waits for the other ranks' kernels, then moves.
void meet(Communicator& mine, std::uint64_t sequence, const Part& part, const Move& move,
          const std::function<void()>& spoil) {
  Group& group = *mine.group;
  std::unique_lock lock(group.mutex);
  auto& entry = group.meetings[sequence];
  if (!entry) {
    entry = std::make_shared<Meeting>();
  }
  const auto meeting = entry;
  meeting->parts[mine.rank] = part;
  group.changed.notify_all();
  const auto wait_for = [&](auto ready) {
    while (!ready()) {
      if (mine.is_aborted || mine.error != nccl::kSuccess) {
        return false;
      }
      group.changed.wait_for(lock, std::chrono::milliseconds(2));
    }
    return true;
  };
  const auto size = static_cast<std::size_t>(group.size);
  if (!wait_for([&] { return meeting->parts.size() == size; })) {
    return spoil();
  }
  Sources sources;
  for (const auto& [rank, of] : meeting->parts) {
    if (of.text != part.text) {
      const std::string text = "rank " + std::to_string(mine.rank) + " in " + part.text +
                               " met rank " + std::to_string(rank) + " in " + of.text;
      plans().violation(text);
      mine.set_error(nccl::kInvalidUsage, text);
      return spoil();
    }
    sources.push_back(of.src);
  }
  lock.unlock();
  move(sources);
  lock.lock();
  if (++meeting->done == group.size) {
    group.meetings.erase(sequence);
  }
  group.changed.notify_all();
  if (!wait_for([&] { return meeting->done == group.size; })) {
    spoil();
  }
}

bool is_on(const Communicator& communicator, const void* address, std::size_t bytes) {
  return bytes == 0 || (sim::detail::is_device_address(address) &&
                        sim::detail::device_of_address(address) == communicator.device);
}

struct Collective {
  const char* call;
  std::string text;
  const void* src;
  std::size_t src_bytes;
  void* dst;
  std::size_t dst_bytes;
};

Result enqueue(Collective what, nccl::Handle handle, nccl::StreamHandle stream_handle, Move move) {
  Communicator* communicator = known(handle, what.call);
  if (communicator == nullptr) {
    return nccl::kInvalidUsage;
  }
  bool hangs = false;
  if (const auto result = disturb(what.call, communicator, communicator->rank, &hangs)) {
    return *result;
  }
  const auto stream = static_cast<int>(reinterpret_cast<std::uintptr_t>(stream_handle)) - 1;
  const auto refuse = [&](const std::string& text) {
    plans().violation(what.text + " on rank " + std::to_string(communicator->rank) + ": " + text);
    communicator->set_error(nccl::kInvalidArgument, text);
    return nccl::kInvalidArgument;
  };
  if (communicator->error == nccl::kInProgress) {
    return refuse("before the communicator is connected");
  }
  if (stream < 0 || stream / sim::kStreamsPerDevice != communicator->device) {
    return refuse("a stream of another device");
  }
  if (!is_on(*communicator, what.src, what.src_bytes) ||
      !is_on(*communicator, what.dst, what.dst_bytes)) {
    return refuse("memory that is not on the communicator's device");
  }
  const Part part{what.text, sim::kernel_view(what.src)};
  sim::launch(what.call, stream,
              {{what.src, what.src_bytes, false}, {what.dst, what.dst_bytes, true}},
              [=, sequence = ++communicator->sequence] {
                void* dst = sim::kernel_view(what.dst);
                const auto spoil = [=] { std::memset(dst, 0xff, what.dst_bytes); };
                if (hangs) {
                  plans().hang([&] { return communicator->is_aborted.load(); });
                  return spoil();
                }
                meet(*communicator, sequence, part, move, spoil);
              });
  return nccl::kSuccess;
}

std::string describe(const char* name, std::size_t count, DataType type) {
  return std::string(name) + " of " + std::to_string(count) + " x type " + std::to_string(type);
}

/// Whether all ranks of a communicator are there.
void look_at_connection(Communicator& communicator) {
  const std::lock_guard lock(communicator.group->mutex);
  if (communicator.error == nccl::kInProgress &&
      static_cast<int>(communicator.group->device_of_rank.size()) == communicator.group->size) {
    communicator.error = nccl::kSuccess;
  }
}

}  // namespace
}  // namespace fsdp::test::nccl_stand_in

// ---- the entry points -------------------------------------------------------------------------

#define EXPORTED extern "C" __attribute__((visibility("default")))
namespace sim = fsdp::test::sim;
using namespace fsdp::test::nccl_stand_in;  // NOLINT: the whole file is one library

EXPORTED Control* nccl_stand_in_control() { return &plans(); }

EXPORTED Result ncclGetVersion(int* version) {
  *version = plans().version();
  return nccl::kSuccess;
}

EXPORTED Result ncclGetUniqueId(nccl::UniqueId* id) {
  if (const auto result = disturb("ncclGetUniqueId", nullptr, -1)) {
    return *result;
  }
  static std::atomic<int> next = 0;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->bytes, sizeof(id->bytes), "stand-in %d", ++next);
  return nccl::kSuccess;
}

EXPORTED Result ncclCommInitRankConfig(nccl::Handle* made, int ranks, nccl::UniqueId id, int rank,
                                       nccl::Config* config) {
  *made = nullptr;
  if (const auto result = disturb("ncclCommInitRankConfig", nullptr, rank)) {
    return *result;
  }
  if (config->magic != 0xcafebeef || config->size < sizeof(nccl::Config) || config->blocking != 0) {
    plans().violation("ncclCommInitRankConfig with a configuration that is not set, or blocks");
    return nccl::kInvalidArgument;
  }
  auto* communicator = new Communicator;
  communicator->rank = rank;
  communicator->device =
      c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice().index();
  const std::lock_guard lock(all_mutex);
  auto& group = groups()[id.bytes];
  if (!group) {
    group = std::make_shared<Group>(ranks);
  }
  communicator->group = group;
  communicators().insert(communicator);
  *made = reinterpret_cast<nccl::Handle>(communicator);
  const std::lock_guard inside(group->mutex);
  for (const auto& [other, device] : group->device_of_rank) {
    if (other == rank || device == communicator->device || group->size != ranks) {
      const std::string text = "ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                               " on one device, or one rank twice";
      plans().violation(text);
      communicator->set_error(nccl::kInvalidUsage, text);
      return nccl::kInvalidUsage;
    }
  }
  group->device_of_rank[rank] = communicator->device;
  communicator->error = nccl::kInProgress;
  ++plans().live;
  return nccl::kInProgress;
}

EXPORTED Result ncclCommGetAsyncError(nccl::Handle handle, Result* state) {
  Communicator* communicator = known(handle, "ncclCommGetAsyncError");
  if (communicator == nullptr) {
    return nccl::kInvalidUsage;
  }
  if (const auto result = disturb("ncclCommGetAsyncError", communicator, communicator->rank)) {
    return *result;
  }
  look_at_connection(*communicator);
  *state = static_cast<Result>(communicator->error.load());
  return nccl::kSuccess;
}

EXPORTED Result ncclCommFinalize(nccl::Handle handle) {
  Communicator* communicator = known(handle, "ncclCommFinalize");
  if (communicator == nullptr) {
    return nccl::kInvalidUsage;
  }
  if (const auto result = disturb("ncclCommFinalize", communicator, communicator->rank)) {
    return *result;
  }
  communicator->is_finalized = true;
  return nccl::kSuccess;
}

EXPORTED Result ncclCommDestroy(nccl::Handle handle) {
  Communicator* communicator = known(handle, "ncclCommDestroy");
  if (communicator == nullptr) {
    return nccl::kInvalidUsage;
  }
  if (const auto result = disturb("ncclCommDestroy", communicator, communicator->rank)) {
    return *result;
  }
  if (!communicator->is_finalized) {
    plans().violation("ncclCommDestroy before ncclCommFinalize");
  }
  communicator->is_aborted = true;
  --plans().live;
  return nccl::kSuccess;
}

EXPORTED Result ncclCommAbort(nccl::Handle handle) {
  Communicator* communicator = known(handle, "ncclCommAbort");
  if (communicator == nullptr) {
    return nccl::kInvalidUsage;
  }
  if (const auto result = disturb("ncclCommAbort", communicator, communicator->rank)) {
    return *result;
  }
  communicator->is_aborted = true;
  --plans().live;
  return nccl::kSuccess;
}

EXPORTED const char* ncclGetErrorString(Result result) {
  constexpr std::array<const char*, 8> kTexts = {
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
  return result >= 0 && result < 8 ? kTexts[static_cast<std::size_t>(result)] : "unknown";
}

EXPORTED const char* ncclGetLastError(nccl::Handle handle) {
  auto* communicator = reinterpret_cast<Communicator*>(handle);
  return communicator != nullptr ? communicator->last_error.c_str() : "";
}

EXPORTED Result ncclAllGather(const void* src, void* dst, std::size_t count, DataType type,
                              nccl::Handle handle, nccl::StreamHandle stream) {
  auto* communicator = reinterpret_cast<Communicator*>(handle);
  const std::size_t bytes = count * size_of(type);
  const auto size = static_cast<std::size_t>(communicator->group->size);
  return enqueue(
      {"ncclAllGather", describe("all-gather", count, type), src, bytes, dst, bytes * size}, handle,
      stream, [=](const Sources& sources) {
        auto* to = static_cast<char*>(sim::kernel_view(dst));
        for (std::size_t rank = 0; rank < sources.size(); ++rank) {
          if (to + rank * bytes != sources[rank]) {
            std::memcpy(to + rank * bytes, sources[rank], bytes);
          }
        }
      });
}

EXPORTED Result ncclReduceScatter(const void* src, void* dst, std::size_t count, DataType type,
                                  nccl::ReduceOperation operation, nccl::Handle handle,
                                  nccl::StreamHandle stream) {
  auto* communicator = reinterpret_cast<Communicator*>(handle);
  const std::size_t bytes = count * size_of(type);
  const auto size = static_cast<std::size_t>(communicator->group->size);
  const auto rank = static_cast<std::size_t>(communicator->rank);
  return enqueue({"ncclReduceScatter",
                  describe("reduce-scatter", count, type) + " by " + std::to_string(operation), src,
                  bytes * size, dst, bytes},
                 handle, stream, [=](const Sources& sources) {
                   const auto slice = [&](std::size_t of) {
                     return static_cast<const char*>(sources[of]) + rank * bytes;
                   };
                   std::vector<char> sum(bytes);
                   std::memcpy(sum.data(), slice((rank + 1) % size), bytes);
                   for (std::size_t step = 2; step <= size; ++step) {
                     add(sum.data(), slice((rank + step) % size), count, type);
                   }
                   std::memcpy(sim::kernel_view(dst), sum.data(), bytes);
                 });
}

EXPORTED Result ncclBroadcast(const void* src, void* dst, std::size_t count, DataType type,
                              int root, nccl::Handle handle, nccl::StreamHandle stream) {
  const std::size_t bytes = count * size_of(type);
  return enqueue(
      {"ncclBroadcast", describe("broadcast", count, type) + " from " + std::to_string(root), src,
       bytes, dst, bytes},
      handle, stream, [=](const Sources& sources) {
        const void* from = sources[static_cast<std::size_t>(root)];
        if (void* to = sim::kernel_view(dst); to != from) {
          std::memcpy(to, from, bytes);
        }
      });
}
