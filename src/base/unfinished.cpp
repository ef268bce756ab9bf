// SPDX-License-Identifier: Apache-2.0
#include "base/unfinished.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "fsdp/base/error.hpp"

namespace fsdp::base {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kKeyDigits = 16;

std::string random_key() {
  std::random_device device;
  char text[kKeyDigits + 1];
  std::snprintf(text, sizeof text, "%08x%08x", device(), device());
  return text;
}

/// ".NAME.partial-"
std::string prefix_of(const fs::path& target) {
  return "." + target.filename().string() + ".partial-";
}

[[noreturn]] void fail_to(const char* what, const std::string& path) {
  const int reason = errno;
  fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot ", what, " '", path,
       "': ", std::strerror(reason));
}

Descriptor open_to_lock(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

/// Held as long as it is being made, so that others see that somebody is at it.
bool try_lock(const Descriptor& held) { return ::flock(held.get(), LOCK_EX | LOCK_NB) == 0; }

bool is_at(const Descriptor& held, const std::string& path) {
  struct stat here{}, there{};
  return ::fstat(held.get(), &here) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

bool is_key(const std::string& text) {
  return text.size() == kKeyDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void remove_abandoned(const fs::path& directory, const std::string& prefix) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !is_key(name.substr(prefix.size()))) {
      continue;
    }
    const Descriptor held = open_to_lock(entry.path().string());
    if (held.get() >= 0 && try_lock(held)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

}  // namespace

Unfinished::Unfinished(const std::string& target, PathKind kind) : target_(target) {
  const fs::path place(target);
  const std::string prefix = prefix_of(place);
  const fs::path directory = place.has_parent_path() ? place.parent_path() : fs::path(".");
  remove_abandoned(directory, prefix);
  while (lock_.get() < 0) {
    path_ = (place.parent_path() / (prefix + random_key())).string();
    if (kind == PathKind::kDirectory) {
      if (::mkdir(path_.c_str(), 0777) != 0) {
        fail_to("create directory", path_);
      }
    } else {
      const Descriptor made(
          ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (made.get() < 0) {
        fail_to("create", path_);
      }
    }
    lock_ = open_to_lock(path_);
    if (lock_.get() < 0 && errno != ENOENT) {
      fail_to("open", path_);
    }
    // One that removes what is abandoned may have come in between. File systems without locks have
    // none that does.
    const bool is_lost = (!try_lock(lock_) && errno == EWOULDBLOCK) || !is_at(lock_, path_);
    if (is_lost) {
      lock_.reset();
    }
  }
}

Unfinished::~Unfinished() {
  if (!path_.empty()) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

void Unfinished::finish() {
  if (std::rename(path_.c_str(), target_.c_str()) != 0) {
    fail_to(("rename to '" + target_ + "'").c_str(), path_);
  }
  path_.clear();
  lock_.reset();
}

}  // namespace fsdp::base
