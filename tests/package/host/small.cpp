// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/error.hpp"

int main() {
  try {
    fsdp::fail(fsdp::ErrorCode::kInternal, "from the library");
  } catch (const fsdp::Error& error) {
    return error.text() == "from the library" ? 0 : 1;
  }
}
