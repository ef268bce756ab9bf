// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/error.hpp"

namespace fsdp {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kTimeout: return "time-out";
    case ErrorCode::kPeerFailed: return "peer failed";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kIo: return "i/o";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& text)
    : std::runtime_error(base::detail::concatenate("[", to_string(code), "] ", text)),
      code_(code),
      text_(text) {}

namespace base::detail {
void fail_invariant(const char* condition, const char* file, int line, const std::string& text) {
  throw Error(ErrorCode::kInternal, concatenate("broken invariant ", condition, " at ", file, ":",
                                                line, ": ", text, "; please report this"));
}
}  // namespace base::detail

}  // namespace fsdp
