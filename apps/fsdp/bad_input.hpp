// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fsdp/base/error.hpp"

namespace fsdp::apps {

/// Runs an action on what the user named: whatever is wrong with it is bad input, exit code 2.
/// Failures of the machine (a full disk) and of this program stay what they are. `way` follows what
/// was wrong.
template <class Work>
void as_bad_input(Work&& work, const std::string& way = "") {
  try {
    work();
  } catch (const Error& error) {
    const bool is_users =
        error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorrupt ||
        error.code() == ErrorCode::kMismatch || error.code() == ErrorCode::kUnsupported;
    throw Error(is_users ? ErrorCode::kInvalidArgument : error.code(), error.text() + way);
  }
}

/// What a path is to be: it says what a name on the Hugging Face hub would be fetched as.
enum class Wanted { kModel, kData, kFile };

/// Refuses a path where nothing is. `name` is what the user gave it by: "--init", "PATH".
/// @throws Error kInvalidArgument, also telling how to fetch what looks like a name on the hub
void need_path(const std::string& name, const std::string& path, Wanted wanted);

}  // namespace fsdp::apps
