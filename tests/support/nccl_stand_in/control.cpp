// SPDX-License-Identifier: Apache-2.0
#include "support/nccl_stand_in/control.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace fsdp::test::nccl_stand_in {

Control& control() {
  static Control* const found = [] {
    const char* path = std::getenv("FSDP_NCCL");
    void* library = ::dlopen(path != nullptr ? path : "", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error(::dlerror());
    }
    const auto get = reinterpret_cast<Control* (*)()>(::dlsym(library, "nccl_stand_in_control"));
    if (get == nullptr) {
      throw std::runtime_error("FSDP_NCCL names another library");
    }
    return get();
  }();
  return *found;
}

}  // namespace fsdp::test::nccl_stand_in
