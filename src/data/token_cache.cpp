// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/hash.hpp"
#include "data/files_under.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/tokenize.hpp"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;

/// A hash of what a cached file depends on.
class Key {
 public:
  void add(const std::string& text) {
    hash_.add(text);
    hash_.add(std::string_view("\0", 1));
  }

  /// Content is not read: a file with the same path, size and time is taken for the same.
  void add_file(const std::string& path) {
    struct stat status{};
    FSDP_CHECK(::stat(path.c_str(), &status) == 0,
               errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "'", path,
               "' cannot be read: ", std::strerror(errno));
    add(fs::absolute(path).lexically_normal().string());
    add(std::to_string(status.st_size));
    add(std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec));
  }

  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_.value()));
    return text;
  }

 private:
  base::Fnv1a hash_;
};

/// Held until the end of the scope, or of the process.
class Lock {
 public:
  explicit Lock(const std::string& path)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    FSDP_CHECK(file_ >= 0, ErrorCode::kIo, "'", path,
               "' cannot be written: ", std::strerror(errno));
    int locked = 0;
    do {
      locked = ::flock(file_, LOCK_EX);
    } while (locked != 0 && errno == EINTR);
    const int reason = errno;
    if (locked != 0) {
      ::close(file_);
      fail(ErrorCode::kIo, "'", path, "' cannot be locked: ", std::strerror(reason));
    }
  }
  ~Lock() { ::close(file_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

std::string file_name(const std::string& input, const std::string& tokenizer_path,
                      const TokenizeOptions& options) {
  Key key;
  key.add(options.encode.special_tokens ? "special" : "plain");
  key.add(options.encode.drop_unknown ? "dropped" : "all");
  key.add(options.end_files ? "ended" : "joined");
  const bool is_directory = fs::is_directory(input);
  for (const std::string& file :
       is_directory ? detail::files_under(input) : std::vector<std::string>{input}) {
    key.add_file(file);
  }
  key.add("tokenizer");
  for (const std::string& file : tokens::files_of(tokenizer_path)) {
    key.add_file(file);
  }
  const fs::path path = fs::absolute(input).lexically_normal();
  const std::string stem = (path.has_filename() ? path : path.parent_path()).stem().string();
  return stem + "-" + key.hex() + ".bin";
}

}  // namespace

std::string default_token_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/fsdp/tokens";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/fsdp/tokens";
  }
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  return ((error ? fs::path("/tmp") : temporary) / ("fsdp-tokens-" + std::to_string(::getuid())))
      .string();
}

std::string cached_tokens(const std::string& input, const std::string& tokenizer_path,
                          const std::string& directory, const TokenizeOptions& options) {
  std::error_code error;
  FSDP_CHECK(fs::exists(input, error), ErrorCode::kNotFound, "'", input, "' does not exist");
  fs::create_directories(directory, error);
  FSDP_CHECK(fs::is_directory(directory), ErrorCode::kIo, "directory '", directory,
             "' for tokens cannot be made: ", error.message());
  const std::string path =
      (fs::path(directory) / file_name(input, tokenizer_path, options)).string();
  // Also when the tokens are there: an earlier call may have been told to take any bytes.
  if (!options.any_bytes) {
    check_content(input);
  }
  const Lock lock(path + ".lock");
  if (!fs::exists(path)) {
    tokenize(*tokens::load(tokenizer_path), {input}, path, options);
  }
  return path;
}

}  // namespace fsdp::data
