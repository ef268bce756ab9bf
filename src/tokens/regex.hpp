// SPDX-License-Identifier: Apache-2.0
/// PCRE2 with its JIT compiler, as far as splitting text needs it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::tokens::detail {

/// A compiled pattern.
///
/// *Thread safety*: one call at a time; the place for a match is kept with the pattern.
class Regex {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;  ///< in bytes
  };

  /// Compiles a pattern in PCRE2's syntax, for UTF-8, with Unicode's properties.
  /// @throws Error kUnsupported with PCRE2's reason and its place in the pattern
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  const std::string& pattern() const { return pattern_; }

  /// The first match at or after byte `begin` that is not empty. `text` must be valid UTF-8.
  /// @throws Error kUnsupported when the pattern needs more stack on this text than there is
  std::optional<Match> next(std::string_view text, std::size_t begin) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace fsdp::tokens::detail
