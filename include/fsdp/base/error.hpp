// SPDX-License-Identifier: Apache-2.0
/// The one exception type of the library. Every error that a user can cause or that the outside
/// world can cause is an `fsdp::Error`; it says what was attempted, what was found, both numbers,
/// and what to do. Errors of LibTorch itself pass through as `c10::Error`.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fsdp {

/// Why an operation failed. The command line maps codes to exit codes (docs/reference/cli.md).
enum class ErrorCode {
  kInvalidArgument,  ///< the caller passed something that cannot work; exit code 2
  kMismatch,         ///< ranks disagree: another model, another collective, another size
  kNotFound,         ///< a file, a parameter or a variable that should exist does not
  kCorrupt,          ///< bytes from outside do not follow their format
  kTimeout,          ///< a wait ended without an answer
  kPeerFailed,       ///< another rank failed first; the text carries its cause
  kUnsupported,      ///< valid, but not something this library does
  kIo,               ///< the operating system refused a read or a write
  kInternal,         ///< an invariant of the library is broken: please report it
};

/// The name of a code as it appears in messages, for example "mismatch".
const char* to_string(ErrorCode code);

/// The library's exception.
///
/// *Thread safety*: immutable after construction.
class Error : public std::runtime_error {
 public:
  /// `what()` becomes "[code] text".
  Error(ErrorCode code, const std::string& text);

  ErrorCode code() const noexcept { return code_; }
  /// The message without the code in front.
  const std::string& text() const noexcept { return text_; }

 private:
  ErrorCode code_;
  std::string text_;
};

namespace base::detail {
template <class... Parts>
std::string concatenate(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}
[[noreturn]] void fail_invariant(const char* condition, const char* file, int line,
                                 const std::string& text);
}  // namespace base::detail

/// Throws an Error with the parts written one after the other.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, base::detail::concatenate(parts...));
}

}  // namespace fsdp

/// Checks what a caller or the outside world must guarantee:
/// `FSDP_CHECK(batch > 0, ErrorCode::kInvalidArgument, "batch is ", batch, ", must be positive")`.
#define FSDP_CHECK(condition, code, ...) \
  do {                                   \
    if (!(condition)) {                  \
      ::fsdp::fail((code), __VA_ARGS__); \
    }                                    \
  } while (false)

/// Checks an invariant of the library itself, also in release builds.
#define FSDP_ASSERT(condition, ...)                                                         \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      ::fsdp::base::detail::fail_invariant(#condition, __FILE__, __LINE__,                  \
                                           ::fsdp::base::detail::concatenate(__VA_ARGS__)); \
    }                                                                                       \
  } while (false)
