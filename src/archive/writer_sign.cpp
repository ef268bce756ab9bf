// SPDX-License-Identifier: Apache-2.0
#include "archive/writer_sign.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <string>

#include "archive/draft_files.hpp"

namespace fsdp::archive {

namespace {

/// The same for the processes of one running system, and for no others.
std::string boot_id() {
  std::array<char, 36> text{};
  const base::Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const bool is_there = ::read(file.get(), text.data(), text.size()) == std::ssize(text);
  return is_there ? std::string(text.data(), text.size()) : "";
}

}  // namespace

WriterSign::WriterSign(const Draft& draft, int rank) {
  const std::string id = boot_id();
  file_.reset(::open(detail::sign_path(draft, rank).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  // Written last: whoever reads it finds the lock.
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::write(file_.get(), id.data(), id.size()) != std::ssize(id)) {
    file_.reset();
  }
}

bool has_gone(const Draft& draft, int rank) {
  const std::string own = boot_id();
  const base::Descriptor file(
      ::open(detail::sign_path(draft, rank).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string found(own.size(), '\0');
  return !own.empty() && ::read(file.get(), found.data(), found.size()) == std::ssize(found) &&
         found == own && ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
}

}  // namespace fsdp::archive
