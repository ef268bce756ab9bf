// SPDX-License-Identifier: Apache-2.0
/// What goes between a job's store and those that use it.
///
/// NOTE [the job's store]
///
///     server -> client   "FSDPSTO1", 32 random bytes                             on acceptance
///     client -> server   32 random bytes, proof that it knows the job's secret
///     server -> client   'y', its own proof; or 'n', and the connection is closed
///     client -> server   length, request                                         again and again
///     server -> client   length, answer
///
/// A proof is an HMAC over who proves and both sides' random bytes, so it is good for one
/// connection and tells nothing of the secret. Nobody who has not proved it is listened to: 64
/// bytes are read of a stranger, and he has seconds for them. What is said afterwards is not
/// encrypted.
///
/// A request is a letter and fields, each with its length in front: see key_table.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/sha256.hpp"

namespace fsdp::net::wire {

inline constexpr std::string_view kGreeting = "FSDPSTO1";
inline constexpr std::size_t kRandomBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr char kYes = 'y';
inline constexpr char kNo = 'n';
/// The request cannot be granted; the reason follows.
inline constexpr char kRefused = 'f';
/// Of one request or answer.
inline constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

using Length = std::uint32_t;

enum class Request : char {
  kSet = 's',
  kGet = 'g',
  kAdd = 'a',
  kCompareSet = 'c',
  kCheck = 'k',
  kErase = 'e',
  kCount = 'n',
};

inline void append_number(std::string& bytes, Length number) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(number >> shift);
  }
}

/// Of four bytes that are there.
inline Length number_of(std::string_view bytes) {
  Length number = 0;
  for (std::size_t i = 0; i < sizeof(Length); ++i) {
    number |= Length{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return number;
}

inline void append_field(std::string& bytes, std::string_view field) {
  append_number(bytes, static_cast<Length>(field.size()));
  bytes += field;
}

/// `side` is "server" or "client".
inline base::Digest prove(std::string_view secret, std::string_view side,
                          std::string_view of_server, std::string_view of_client) {
  return base::hmac_sha256(secret, std::string(side).append(of_server).append(of_client));
}

}  // namespace fsdp::net::wire
