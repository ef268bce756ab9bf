// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's common/json.cpp takes of ggml, whose assertions would end the process.
#pragma once

#include <stdexcept>

#define GGML_ASSERT(condition)                                \
  do {                                                        \
    if (!(condition)) {                                       \
      throw std::logic_error("llama.cpp's json: " #condition); \
    }                                                         \
  } while (false)
