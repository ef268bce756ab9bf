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
#include "fsdp/data/samples.hpp"
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
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
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

/// Whoever can write into the directory chooses what is trained on: it must be this user's alone.
/// One that is not there yet is made so.
void need_own_directory(const std::string& path) {
  std::error_code error;
  const fs::path plain = fs::absolute(path).lexically_normal();
  const fs::path place = plain.has_filename() ? plain : plain.parent_path();
  fs::create_directories(place.parent_path(), error);
  const bool is_made = ::mkdir(place.c_str(), 0700) == 0;
  const int reason = errno;
  struct stat status{};
  FSDP_CHECK(::lstat(place.c_str(), &status) == 0, ErrorCode::kIo, "directory '", path,
             "' for tokens cannot be made: ", std::strerror(is_made ? errno : reason));
  constexpr const char* kWay = "; remove it, or set XDG_CACHE_HOME to a directory of your own";
  FSDP_CHECK(S_ISDIR(status.st_mode), ErrorCode::kIo, "'", path, "' for tokens is ",
             S_ISLNK(status.st_mode) ? "a link" : "no directory",
             ": somebody else may choose what is trained on", kWay);
  FSDP_CHECK(status.st_uid == ::geteuid(), ErrorCode::kIo, "directory '", path,
             "' for tokens belongs to user ", status.st_uid, ", this is user ", ::geteuid(),
             ": somebody else may choose what is trained on", kWay);
  char mode[8];
  std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(status.st_mode) & 0777u);
  FSDP_CHECK((status.st_mode & (S_IWGRP | S_IWOTH)) == 0, ErrorCode::kIo, "directory '", path,
             "' for tokens can be written by others (mode ", mode,
             "): somebody else may choose what is trained on; chmod 700 it after a look at what it "
             "holds, or remove it");
}

/// Tokens that are there: this user's, and a file in this place.
void need_own_file(const std::string& path) {
  struct stat status{};
  FSDP_CHECK(::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
                 status.st_uid == ::geteuid(),
             ErrorCode::kIo, "'", path, "' is ",
             S_ISREG(status.st_mode) ? "another user's" : "no regular file",
             ": it was not made here; remove it");
}

/// The files that are read, one after the other.
std::vector<std::string> files_of_inputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    std::error_code error;
    FSDP_CHECK(fs::exists(input, error), ErrorCode::kNotFound, "'", input, "' does not exist");
    if (fs::is_directory(input)) {
      const auto below = detail::files_under(input);
      files.insert(files.end(), below.begin(), below.end());
    } else {
      files.push_back(input);
    }
  }
  return files;
}

/// What both kinds of files are named by: the first input, and what they depend on.
std::string file_name(Key& key, const std::vector<std::string>& inputs,
                      const std::string& tokenizer_path, const char* ending) {
  for (const std::string& file : files_of_inputs(inputs)) {
    key.add_file(file);
  }
  key.add("tokenizer");
  for (const std::string& file : tokens::files_of(tokenizer_path)) {
    key.add_file(file);
  }
  const fs::path path = fs::absolute(inputs.front()).lexically_normal();
  const std::string stem = (path.has_filename() ? path : path.parent_path()).stem().string();
  return stem + "-" + key.hex() + ending;
}

/// The file of that name in the cache, made by `make(path)` unless it is there.
template <class Make>
std::string cached(const std::string& directory, const std::string& name, Make&& make) {
  need_own_directory(directory);
  std::string path = (fs::path(directory) / name).string();
  const Lock lock(path + ".lock");
  if (fs::symlink_status(path).type() == fs::file_type::not_found) {
    make(path);
  }
  need_own_file(path);
  return path;
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

std::string cached_tokens(const std::vector<std::string>& inputs, const std::string& tokenizer_path,
                          const std::string& directory, const TokenizeOptions& options) {
  FSDP_CHECK(!inputs.empty(), ErrorCode::kInvalidArgument, "there is no text to tokenize");
  Key key;
  key.add(options.encode.special_tokens ? "special" : "plain");
  key.add(options.encode.drop_unknown ? "dropped" : "all");
  key.add(options.end_files ? "ended" : "joined");
  const std::string name = file_name(key, inputs, tokenizer_path, ".bin");
  // Also when the tokens are there: an earlier call may have been told to take any bytes.
  if (!options.any_bytes) {
    for (const std::string& input : inputs) {
      check_content(input);
    }
  }
  return cached(directory, name, [&](const std::string& path) {
    tokenize(*tokens::load(tokenizer_path), inputs, path, options);
  });
}

std::string cached_samples(const std::vector<std::string>& inputs,
                           const std::string& tokenizer_path, const std::string& directory,
                           const std::function<void(const TokenizeProgress&)>& progress) {
  FSDP_CHECK(!inputs.empty(), ErrorCode::kInvalidArgument, "there are no records");
  std::error_code ignored;
  const auto files = tokens::files_of(tokenizer_path);
  // Chat templates lie beside tokenizers.
  const std::string model = files.empty() ? "" : fs::absolute(files.front()).parent_path().string();
  Key key;
  key.add("samples 1");
  const fs::path chat = fs::path(model) / "chat_template.jinja";
  if (!model.empty() && fs::exists(chat, ignored)) {
    key.add_file(chat.string());
  }
  const std::string name = file_name(key, inputs, tokenizer_path, ".samples");
  return cached(directory, name, [&](const std::string& path) {
    make_samples(*tokens::load(tokenizer_path), model, files_of_inputs(inputs), path, progress);
  });
}

}  // namespace fsdp::data
