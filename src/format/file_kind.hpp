// SPDX-License-Identifier: Apache-2.0
/// What a file is that is no plain text, from its name and its first bytes, and the command that
/// makes text of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::format::detail {

/// As many bytes of a file's head as any format needs to be known.
inline constexpr std::size_t kHeadBytes = 512;

/// A format that holds no plain text.
struct FileKind {
  std::string_view name;     ///< "a Parquet file"
  std::string_view endings;  ///< lower case, a space after each: ".parquet .pq "
  std::string_view head;  ///< what it begins with; '?' stands for any byte; empty: not known by it
  std::string_view way;   ///< to text, with {in} and {out} for the quoted paths; empty: none
  std::size_t head_at = 0;  ///< where `head` stands
};

/// The kind that the first bytes say, else the one that the name says; nullptr for neither.
const FileKind* kind_of_file(std::string_view path, std::string_view head);

/// The kind that the first bytes say; nullptr for none.
const FileKind* kind_by_head(std::string_view head);

/// A path as one word of a shell's command line.
std::string shell_quoted(std::string_view path);

/// `way` with {in} filled by `path` and {out} by `path` with ".txt" behind.
std::string way_for(std::string_view way, std::string_view path);

/// Records in JSON, one a line or in an array.
struct JsonKind {
  std::string name;  ///< "JSON lines of Alpaca's fields (instruction, output)"
  std::string way;   ///< to text, as in FileKind
};

/// What JSON a text begins with; nothing when it does not look like JSON at all. `head` is the
/// begin of the file, as long as a few records.
std::optional<JsonKind> kind_of_json(std::string_view path, std::string_view head);

}  // namespace fsdp::format::detail
