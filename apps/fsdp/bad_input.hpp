// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fsdp/base/error.hpp"

namespace fsdp::apps {

/// Runs an action on what the user named: whatever is wrong with it is bad input, exit code 2.
/// Failures of the machine (a full disk) and of this program stay what they are.
template <class Work>
void as_bad_input(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    const bool is_users = error.code() == ErrorCode::kNotFound ||
                          error.code() == ErrorCode::kCorrupt ||
                          error.code() == ErrorCode::kUnsupported;
    throw Error(is_users ? ErrorCode::kInvalidArgument : error.code(), error.text());
  }
}

}  // namespace fsdp::apps
