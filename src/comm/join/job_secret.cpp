// SPDX-License-Identifier: Apache-2.0
#include "comm/join/job_secret.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/descriptor.hpp"
#include "base/text.hpp"
#include "base/variable.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

std::string read_secret_file(const std::string& path) {
  const base::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found{};
  FSDP_CHECK(file.get() >= 0 && ::fstat(file.get(), &found) == 0, ErrorCode::kInvalidArgument,
             "FSDP_JOB_SECRET_FILE is '", path, "', which cannot be read: ", std::strerror(errno));
  constexpr unsigned kOfOthers = 077;
  FSDP_CHECK(
      S_ISREG(found.st_mode) && found.st_uid == ::geteuid() && (found.st_mode & kOfOthers) == 0,
      ErrorCode::kInvalidArgument, "FSDP_JOB_SECRET_FILE is '", path, "', must be a file of user ",
      ::geteuid(), " that nobody else may read (chmod 600)");
  std::array<char, 4096> bytes{};
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  return base::first_line(
      std::string(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))));
}

}  // namespace

std::string read_job_secret() {
  constexpr std::size_t kShortest = 16;
  std::string secret = base::get_variable("FSDP_JOB_SECRET");
  const std::string path = base::get_variable("FSDP_JOB_SECRET_FILE");
  const bool is_from_file = secret.empty() && !path.empty();
  if (is_from_file) {
    secret = read_secret_file(path);
  }
  FSDP_CHECK((secret.empty() && !is_from_file) || secret.size() >= kShortest,
             ErrorCode::kInvalidArgument,
             is_from_file ? "the file of FSDP_JOB_SECRET_FILE" : "FSDP_JOB_SECRET", " has ",
             secret.size(), " characters in its first line, a job's secret needs at least ",
             kShortest, ": `openssl rand -hex 32` makes one");
  return secret;
}

}  // namespace fsdp::comm::detail
