// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_file.hpp"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/join/host.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// A text of fixed size, as it travels.
using Record = std::array<char, 256>;

Record to_record(const std::string& text) {
  Record record{};
  std::memcpy(record.data(), text.data(), std::min(text.size(), record.size() - 1));
  return record;
}

bool on_one_host(Job& job, const Label& label) {
  const Record mine = to_record(host_identity());
  const auto all = gather_values(job, mine, label.name);
  return std::all_of(all.begin(), all.end(), [&](const Record& record) { return record == mine; });
}

int make_file(std::size_t bytes) {
  const int file = ::memfd_create("fsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file >= 0 &&
      (::fchmod(file, 0600) != 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0 ||
       ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
    ::close(file);
    return -1;
  }
  return file;
}

std::shared_ptr<void> map_file(int file, std::size_t bytes) {
  if (file < 0) {
    return nullptr;
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  return {memory, [bytes](void* start) { ::munmap(start, bytes); }};
}

}  // namespace

at::Tensor map_shared_file(Job& job, std::int64_t bytes, const Label& label) {
  const DispatchGuard guard;
  FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
  if (!on_one_host(job, label)) {
    return {};
  }
  const auto mapped_bytes = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const bool is_owner = job.rank() == 0;
  const base::Descriptor owned(is_owner ? make_file(mapped_bytes) : -1);
  Record path{};
  if (owned.get() >= 0) {
    path = to_record("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(owned.get()));
  }
  job.broadcast_bytes(std::as_writable_bytes(std::span(path)), 0, label);
  const base::Descriptor opened(is_owner ? -1 : ::open(path.data(), O_RDWR | O_CLOEXEC));
  std::shared_ptr<void> memory = map_file(is_owner ? owned.get() : opened.get(), mapped_bytes);

  // Also what keeps the owner's file open until all have opened it.
  const auto all = gather_values(job, memory ? bytes : std::int64_t{-1}, label.name);
  if (std::any_of(all.begin(), all.end(), [](std::int64_t value) { return value < 0; })) {
    return {};
  }
  FSDP_CHECK(
      std::all_of(all.begin(), all.end(), [&](std::int64_t value) { return value == bytes; }),
      ErrorCode::kMismatch, "ranks ask for shared memory of different sizes, rank ", job.rank(),
      " for ", bytes, " bytes");
  void* data = memory.get();
  return at::from_blob(data, {bytes}, [memory](void*) {}, at::TensorOptions(at::kByte));
}

}  // namespace fsdp::comm::detail
