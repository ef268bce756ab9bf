// SPDX-License-Identifier: Apache-2.0
/// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104): how a process proves that it knows a secret
/// without saying it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp::base {

using Digest = std::array<char, 32>;

class Sha256 {
 public:
  void add(std::string_view bytes);
  /// Of all that was added; once.
  Digest finish();

 private:
  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t bytes_ = 0;
};

Digest sha256(std::string_view bytes);

/// What only those can compute who know `secret`.
Digest hmac_sha256(std::string_view secret, std::string_view message);

/// In a time that does not tell at which byte they differ.
bool are_equal(std::string_view left, std::string_view right);

inline std::string_view view_of(const Digest& digest) { return {digest.data(), digest.size()}; }

}  // namespace fsdp::base
