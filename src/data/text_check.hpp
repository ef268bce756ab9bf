// SPDX-License-Identifier: Apache-2.0
/// Whether what a user named as data is text, or tokens, before anything is learnt from it: bytes
/// of any file can be trained on, and a loss falls on most of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::data::detail {

/// What a look at the bytes of a text found.
struct TextShare {
  std::int64_t looked_at = 0;  ///< bytes
  std::int64_t bad = 0;        ///< of these, in no UTF-8 or zero
  std::int64_t first_bad = 0;  ///< where the first one stands
};

/// Counts the bytes that no text in UTF-8 has. Files of more than 64 MiB are sampled: 64 pieces of
/// one MiB, the first and the last among them.
TextShare text_share(std::span<const unsigned char> bytes);

/// Refuses files that are of a known other format, that are JSON, or of which more than a
/// thousandth is not UTF-8. `where` names what holds the files where they are several.
/// @throws Error kInvalidArgument naming the first, their number and the way to text
void check_texts(const std::string& where, const std::vector<std::string>& files);

/// The same for a `.bin` file without a header: everything can be read as numbers of 16 bits.
/// @throws Error kInvalidArgument for a known other format and for text
void check_plain_tokens(const std::string& file);

}  // namespace fsdp::data::detail
