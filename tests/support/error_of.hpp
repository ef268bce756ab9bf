// SPDX-License-Identifier: Apache-2.0
/// What an action throws, as text.
#pragma once

#include <exception>
#include <string>

namespace fsdp::test {

/// Runs `action` and returns the text of the exception that it throws, or "no error".
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fsdp::test
