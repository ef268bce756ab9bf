// SPDX-License-Identifier: Apache-2.0
#include "data/open_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

OpenFile::OpenFile(const std::string& path)
    // A pipe without a writer must be refused below, not waited for.
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  FSDP_CHECK(file_.get() >= 0, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  struct stat status{};
  FSDP_CHECK(::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode), ErrorCode::kIo, "'",
             path, "' is not a regular file");
  size_ = status.st_size;
}

void OpenFile::read(std::int64_t offset, std::int64_t bytes, void* dst) const {
  char* next = static_cast<char*>(dst);
  const std::int64_t end = offset + bytes;
  for (std::int64_t at = offset; at < end;) {
    const ssize_t count = ::pread(file_.get(), next, static_cast<std::size_t>(end - at), at);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    FSDP_CHECK(count >= 0, ErrorCode::kIo, "'", path_, "' cannot be read: ", std::strerror(errno));
    if (count == 0) {
      refuse_cut(at);
    }
    next += count;
    at += count;
  }
}

void OpenFile::check_size(bool is_cut) const {
  struct stat status{};
  FSDP_CHECK(::fstat(file_.get(), &status) == 0, ErrorCode::kIo, "'", path_,
             "' cannot be looked at: ", std::strerror(errno));
  if (is_cut || status.st_size < size_) {
    refuse_cut(status.st_size);
  }
}

void OpenFile::refuse_cut(std::int64_t end) const {
  fail(ErrorCode::kCorrupt, "'", path_, "' had ", size_,
       " bytes when it was opened and now ends at byte ", end,
       ": it was truncated while it was in use");
}

}  // namespace fsdp::data::detail
