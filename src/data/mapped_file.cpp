// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "data/open_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file(path);
  size_ = static_cast<std::size_t>(file.size());
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    FSDP_CHECK(mapped != MAP_FAILED, ErrorCode::kIo, "'", path,
               "' cannot be mapped: ", std::strerror(errno));
    data_ = static_cast<const unsigned char*>(mapped);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<unsigned char*>(data_), size_);
  }
}

}  // namespace fsdp::data::detail
