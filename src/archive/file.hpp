// SPDX-License-Identifier: Apache-2.0
/// Files whose errors say what was attempted, on which path, why, and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::archive::detail {

/// Throws what the last system call left in errno: kNotFound for a path that is not there, kIo
/// else. On a full disk the text has the bytes needed and those free.
[[noreturn]] void fail_io(const std::string& what, const std::string& path,
                          std::int64_t needed_bytes = -1);

/// Bytes that may be written below `path`; -1 when the system does not tell.
std::int64_t free_bytes(const std::string& path);

enum class OpenMode {
  kRead,
  kWrite,   ///< exists already
  kCreate,  ///< empty afterwards
};

/// An open file. Move-only. *Thread safety*: reads and writes at a position may run side by side.
class File {
 public:
  /// @throws Error kNotFound, kIo
  File(std::string path, OpenMode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  std::int64_t size() const;
  void resize(std::int64_t bytes);
  /// Writes all of it at `offset` and asks the system to begin moving it to the disk.
  void write(const void* data, std::int64_t bytes, std::int64_t offset);
  /// @throws Error kCorrupt when the file ends before
  void read(void* data, std::int64_t bytes, std::int64_t offset) const;
  /// Asks the system to fetch a range that is read soon. A hint.
  void will_read(std::int64_t bytes, std::int64_t offset) const;
  /// Returns when the disk has it.
  void sync();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// All of a file. @throws Error kCorrupt when it has more than `most_bytes`
std::string read_file(const std::string& path, std::int64_t most_bytes);
/// Creates a file with that content, on disk when it returns.
void write_file(const std::string& path, std::string_view content);
/// Makes entries of a directory (created, renamed) survive a power cut.
void sync_directory(const std::string& path);
/// Renames; errors name both.
void rename_path(const std::string& from, const std::string& to);

}  // namespace fsdp::archive::detail
