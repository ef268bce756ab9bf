// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

MappedFile::MappedFile(const std::string& path) {
  // A pipe without a writer must be refused below, not waited for.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FSDP_CHECK(file >= 0, errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
             "' cannot be opened: ", std::strerror(errno));
  struct stat status{};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    fail(ErrorCode::kIo, "'", path, "' is not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int reason = errno;
    ::close(file);
    FSDP_CHECK(mapped != MAP_FAILED, ErrorCode::kIo, "'", path,
               "' cannot be mapped: ", std::strerror(reason));
    data_ = static_cast<const unsigned char*>(mapped);
  } else {
    ::close(file);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<unsigned char*>(data_), size_);
  }
}

}  // namespace fsdp::data::detail
