// SPDX-License-Identifier: Apache-2.0
#include "archive/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/regular_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {

namespace fs = std::filesystem;

std::int64_t free_bytes(const std::string& path) {
  struct statvfs status{};
  std::error_code ignored;
  fs::path place = path;
  while (!fs::exists(place, ignored) && place.has_relative_path()) {
    place = place.parent_path();
  }
  if (::statvfs(place.empty() ? "." : place.c_str(), &status) != 0) {
    return -1;
  }
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

void fail_io(const std::string& what, const std::string& path, std::int64_t needed_bytes) {
  const int reason = errno;
  std::ostringstream text;
  text << "cannot " << what << " '" << path << "': " << std::strerror(reason);
  if (needed_bytes >= 0 && (reason == ENOSPC || reason == EDQUOT || reason == EFBIG)) {
    text << " (" << needed_bytes << " bytes needed, " << free_bytes(path)
         << " free): free some space or save elsewhere";
  } else if (reason == EROFS || reason == EACCES || reason == EPERM) {
    text << ": choose a directory that can be written";
  } else if (reason == ENOENT && what != "open") {
    text << ": was its directory removed meanwhile?";
  }
  fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, text.str());
}

File::File(std::string path, OpenMode mode) : path_(std::move(path)) {
  if (mode == OpenMode::kRead) {
    base::need_regular(path_);
  }
  const int flags = mode == OpenMode::kRead    ? O_RDONLY
                    : mode == OpenMode::kWrite ? O_WRONLY
                                               : O_RDWR | O_CREAT | O_TRUNC;
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail_io(mode == OpenMode::kCreate ? "create" : "open", path_);
  }
}

File::~File() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

std::int64_t File::size() const {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) {
    fail_io("look at", path_);
  }
  return status.st_size;
}

void File::resize(std::int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) {
    fail_io("resize", path_, bytes);
  }
}

void File::write(const void* data, std::int64_t bytes, std::int64_t offset) {
  const char* next = static_cast<const char*>(data);
  const std::int64_t end = offset + bytes;
  for (std::int64_t at = offset; at < end;) {
    const ssize_t written = ::pwrite(descriptor_, next, static_cast<std::size_t>(end - at), at);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      errno = written == 0 ? ENOSPC : errno;
      fail_io("write", path_, end - at);
    }
    next += written;
    at += written;
  }
  // A hint: whether it is taken changes nothing but the time that sync() takes.
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* next = static_cast<char*>(data);
  const std::int64_t end = offset + bytes;
  for (std::int64_t at = offset; at < end;) {
    const ssize_t count = ::pread(descriptor_, next, static_cast<std::size_t>(end - at), at);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail_io("read", path_);
    }
    FSDP_CHECK(count > 0, ErrorCode::kCorrupt, "'", path_, "' ends at byte ", at,
               " where bytes up to ", end, " were to be read: truncated?");
    next += count;
    at += count;
  }
}

void File::will_read(std::int64_t bytes, std::int64_t offset) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

void File::sync() {
  if (::fsync(descriptor_) != 0) {
    fail_io("sync", path_, size());
  }
}

std::string read_file(const std::string& path, std::int64_t most_bytes) {
  const File file(path, OpenMode::kRead);
  const std::int64_t bytes = file.size();
  FSDP_CHECK(bytes <= most_bytes, ErrorCode::kCorrupt, "'", path, "' has ", bytes,
             " bytes, expected at most ", most_bytes);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  file.read(content.data(), bytes, 0);
  return content;
}

void write_file(const std::string& path, std::string_view content) {
  File file(path, OpenMode::kCreate);
  file.write(content.data(), std::ssize(content), 0);
  file.sync();
}

void sync_directory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    fail_io("open", path);
  }
  const bool is_synced = ::fsync(descriptor) == 0 || errno == EINVAL;  // some systems need none
  const int reason = errno;
  ::close(descriptor);
  if (!is_synced) {
    errno = reason;
    fail_io("sync", path);
  }
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail_io("rename to '" + to + "'", from);
  }
}

}  // namespace fsdp::archive::detail
