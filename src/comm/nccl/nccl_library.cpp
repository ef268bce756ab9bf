// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_library.hpp"

#include <ATen/core/Tensor.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace fsdp::comm::detail::nccl {
namespace {

constexpr const char* kFileName = "libnccl.so.2";

/// The folder of the library that holds this part of LibTorch; empty when the linker does not know.
std::filesystem::path folder_of_torch() {
  Dl_info info{};
  // An exported function of libc10 or libtorch_cpu; both lie in one folder.
  const auto address = reinterpret_cast<const void*>(&c10::get_privateuse1_backend);
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

template <class Function>
bool take(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// The first entry point that `library` lacks; null when all are there.
const char* fill(void* library, Functions& functions) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!take(library, name, function) && missing == nullptr) {
      missing = name;
    }
  };
  need("ncclGetVersion", functions.get_version);
  need("ncclGetUniqueId", functions.get_unique_id);
  need("ncclCommInitRankConfig", functions.init_rank);
  need("ncclCommFinalize", functions.finalize);
  need("ncclCommDestroy", functions.destroy);
  need("ncclCommAbort", functions.abort);
  need("ncclCommGetAsyncError", functions.get_async_error);
  need("ncclGetErrorString", functions.get_error_string);
  need("ncclGetLastError", functions.get_last_error);
  need("ncclAllGather", functions.all_gather);
  need("ncclReduceScatter", functions.reduce_scatter);
  need("ncclBroadcast", functions.broadcast);
  return missing;
}

/// What an open library is worth. An old one lacks entry points, so its version comes first.
Search judge(void* library, const std::string& path) {
  auto found = std::make_shared<Library>();
  found->path = path;
  const char* missing = fill(library, *found);
  const bool tells_version =
      found->get_version != nullptr && found->get_version(&found->version) == kSuccess;
  if (tells_version && found->version < kOldestVersion) {
    return {nullptr, "needs NCCL " + version_text(kOldestVersion) + " or newer, and '" + path +
                         "' is " + version_text(found->version) +
                         ": install a newer one (the wheel nvidia-nccl-cu13, say), or name it in "
                         "FSDP_NCCL"};
  }
  if (missing != nullptr || !tells_version) {
    return {nullptr, "cannot use '" + path + "': it has no " +
                         (missing != nullptr ? missing : "version that it tells") +
                         ". Is it NCCL's library, 2.18 or newer?"};
  }
  return {std::move(found), ""};
}

/// LibTorch's library for the device, when it is in the process.
void* torch_cuda() { return ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD); }

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string Library::version_text() const { return nccl::version_text(version); }

Search find_library() {
  const auto open = [](const std::string& path, int more = 0) {
    return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | more);
  };
  if (const char* named = std::getenv("FSDP_NCCL"); named != nullptr && *named != '\0') {
    void* library = open(named);
    if (library == nullptr) {
      const char* why = ::dlerror();
      return {nullptr, std::string("cannot open the library that FSDP_NCCL names: ") +
                           (why != nullptr ? why : named)};
    }
    return judge(library, named);
  }
  if (void* library = open(kFileName, RTLD_NOLOAD)) {
    return judge(library, std::string(kFileName) + " of this process");
  }
  const std::filesystem::path folder = folder_of_torch();
  std::string looked;
  if (!folder.empty()) {
    const std::vector<std::filesystem::path> places{
        folder / kFileName, folder.parent_path().parent_path() / "nvidia/nccl/lib" / kFileName};
    for (const std::filesystem::path& place : places) {
      if (void* library = open(place.string())) {
        return judge(library, place.string());
      }
      looked += "'" + place.parent_path().string() + "', ";
    }
  }
  void* device_library = torch_cuda();
  if (device_library != nullptr && ::dlsym(device_library, "ncclGetVersion") != nullptr) {
    return judge(device_library, "NCCL inside of libtorch_cuda.so");
  }
  if (void* library = open(kFileName)) {
    return judge(library, std::string(kFileName) + " of the system");
  }
  std::string problem = std::string("found no ") + kFileName + " in " + looked +
                        "or on the system: install the wheel nvidia-nccl-cu13, or name the library "
                        "in FSDP_NCCL";
  if (device_library != nullptr) {
    problem +=
        ". (The NCCL of this LibTorch is linked into it statically, or it was built without: "
        "it cannot be used from outside)";
  }
  return {nullptr, problem};
}

}  // namespace fsdp::comm::detail::nccl
