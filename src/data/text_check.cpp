// SPDX-License-Identifier: Apache-2.0
#include "data/text_check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "data/content.hpp"
#include "data/mapped_file.hpp"
#include "data/open_file.hpp"
#include "format/file_kind.hpp"
#include "fsdp/base/error.hpp"
#include "tokens/utf8.hpp"

namespace fsdp::data::detail {
namespace {

using Bytes = std::span<const unsigned char>;

constexpr std::int64_t kPiece = std::int64_t{1} << 20;
constexpr std::int64_t kPieces = 64;
/// A text may hold one byte in so many that is no UTF-8.
constexpr std::int64_t kGoodPerBad = 1000;
/// Holds a few records of a data set.
constexpr std::size_t kRecordBytes = std::size_t{1} << 16;
constexpr std::size_t kLongestCharacter = 4;

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Whether eight bytes are all ASCII and none is zero.
bool is_plain(const unsigned char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  // A zero byte borrows from its neighbour, which sets its highest bit.
  return (word & kHigh) == 0 && ((word - kOnes) & kHigh) == 0;
}

/// Adds a piece that may begin and end in the middle of a character.
void add(Bytes bytes, std::int64_t offset, bool is_begin, bool is_end, TextShare& share) {
  std::size_t at = 0;
  while (!is_begin && at < std::min(kLongestCharacter - 1, bytes.size()) &&
         (bytes[at] & 0xc0) == 0x80) {
    ++at;
  }
  while (at < bytes.size()) {
    if (bytes.size() - at >= 8 && is_plain(bytes.data() + at)) {
      at += 8;
      continue;
    }
    const std::size_t length =
        bytes[at] == 0 ? 0 : tokens::detail::character_bytes(as_text(bytes.subspan(at)));
    const bool is_cut = !is_end && bytes.size() - at < kLongestCharacter && bytes[at] >= 0x80;
    if (length == 0 && !is_cut) {
      share.first_bad = share.bad == 0 ? offset + static_cast<std::int64_t>(at) : share.first_bad;
      ++share.bad;
    }
    at += std::max<std::size_t>(length, 1);
  }
  share.looked_at += std::ssize(bytes);
}

std::string percent(const TextShare& share) {
  const double value =
      100.0 * static_cast<double>(share.bad) / static_cast<double>(share.looked_at);
  std::string text = std::to_string(value < 10 ? std::ceil(value * 10) / 10 : std::floor(value));
  return text.substr(0, text.find('.') + (value < 10 ? 2 : 0)) + " %";
}

std::string with_way(const std::string& file, std::string_view what, std::string_view way) {
  return "'" + file + "' is " + std::string(what) + ", no plain text; " +
         (way.empty() ? "leave it out" : "make text of it: " + format::detail::way_for(way, file)) +
         "; or --any-bytes takes its bytes as they are";
}

std::string problem_of(const std::string& file, std::string_view text);

/// Why a file is no text; empty when it is one.
std::string problem_of(const std::string& file) {
  if (plain_name(file) != file && std::filesystem::path(plain_name(file)).extension() == ".txt") {
    const Content content(file);  // which says what is wrong with its stream
    return problem_of(std::string(plain_name(file)), content.text());
  }
  const MappedFile mapped(file);
  std::string problem = problem_of(file, as_text(mapped.bytes()));
  mapped.check();
  return problem;
}

std::string problem_of(const std::string& file, std::string_view text) {
  const Bytes bytes(reinterpret_cast<const unsigned char*>(text.data()), text.size());
  const auto* kind = format::detail::kind_of_file(file, text.substr(0, format::detail::kHeadBytes));
  if (kind != nullptr) {
    return with_way(file, kind->name, kind->way);
  }
  if (const auto json = format::detail::kind_of_json(file, text.substr(0, kRecordBytes))) {
    return with_way(file, json->name, json->way);
  }
  const TextShare share = text_share(bytes);
  if (share.bad * kGoodPerBad <= share.looked_at) {
    return "";
  }
  return "'" + file + "' is no text in UTF-8: " + percent(share) +
         " of its bytes are not, the first at " + std::to_string(share.first_bad) +
         "; convert it, if it is Latin-1 by " +
         format::detail::way_for("iconv -f LATIN1 -t UTF-8 {in} > {out}", file) +
         "; or --any-bytes takes its bytes as they are";
}

bool is_readable_text(Bytes bytes) {
  const auto is_control = [](unsigned char byte) {
    return byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f';
  };
  TextShare share;
  add(bytes, 0, true, false, share);
  return share.bad == 0 && std::none_of(bytes.begin(), bytes.end(), is_control);
}

}  // namespace

TextShare text_share(Bytes bytes) {
  TextShare share;
  const auto size = std::ssize(bytes);
  if (size <= kPieces * kPiece) {
    add(bytes, 0, true, true, share);
    return share;
  }
  for (std::int64_t piece = 0; piece < kPieces; ++piece) {
    const std::int64_t begin = (size - kPiece) / (kPieces - 1) * piece;
    const std::int64_t place = piece + 1 == kPieces ? size - kPiece : begin;
    add(bytes.subspan(static_cast<std::size_t>(place), kPiece), place, piece == 0,
        piece + 1 == kPieces, share);
  }
  return share;
}

void check_texts(const std::string& where, const std::vector<std::string>& files) {
  std::string first;
  std::int64_t count = 0;
  for (const std::string& file : files) {
    std::string problem = problem_of(file);
    count += problem.empty() ? 0 : 1;
    first = first.empty() ? std::move(problem) : first;
  }
  FSDP_CHECK(count == 0 || files.size() > 1, ErrorCode::kInvalidArgument, first);
  FSDP_CHECK(count == 0, ErrorCode::kInvalidArgument, "'", where, "' holds ", count, " of ",
             files.size(),
             " files that are no plain text (hidden names are left out); the first: ", first);
}

void check_plain_tokens(const std::string& file) {
  // Shorter files are text and numbers at once too easily.
  constexpr std::size_t kEnough = 64;
  const OpenFile opened(file);
  std::vector<unsigned char> bytes(std::min(static_cast<std::size_t>(opened.size()), kRecordBytes));
  opened.read(0, std::ssize(bytes), bytes.data());
  const Bytes head = bytes;
  const auto* kind =
      format::detail::kind_by_head(as_text(head).substr(0, format::detail::kHeadBytes));
  FSDP_CHECK(kind == nullptr, ErrorCode::kInvalidArgument, "'", file, "' is ",
             kind == nullptr ? "" : kind->name,
             ", no token file (.bin): fsdp tokenize writes one; or --any-bytes takes it as uint16 "
             "tokens");
  FSDP_CHECK(head.size() < kEnough || !is_readable_text(head), ErrorCode::kInvalidArgument, "'",
             file, "' is text, but .bin is for token files: give it another name, such as ",
             format::detail::shell_quoted(file + ".txt"),
             "; or --any-bytes takes it as uint16 tokens");
}

}  // namespace fsdp::data::detail
