// SPDX-License-Identifier: Apache-2.0
#include "archive/commit.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <tuple>
#include <utility>

#include "archive/checksum.hpp"
#include "archive/draft_files.hpp"
#include "archive/file.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;

namespace {

/// Joins the sums of each tensor's parts, which must follow one another from its first byte to its
/// last.
void enter_sums(std::vector<Tensor>& tensors, std::vector<PieceSum> sums) {
  std::sort(sums.begin(), sums.end(), [](const PieceSum& a, const PieceSum& b) {
    return std::tie(a.tensor, a.tensor_offset) < std::tie(b.tensor, b.tensor_offset);
  });
  std::vector<std::int64_t> ends(tensors.size(), 0);
  for (const PieceSum& sum : sums) {
    Tensor& tensor = tensors.at(sum.tensor);
    std::int64_t& end = ends[sum.tensor];
    FSDP_CHECK(sum.tensor_offset == end, ErrorCode::kInternal, "'", tensor.name, "': byte ",
               std::min(sum.tensor_offset, end),
               sum.tensor_offset < end ? " was written twice" : " was written by no rank");
    tensor.crc32 = crc32_joined(tensor.crc32, sum.crc32, sum.bytes);
    end += sum.bytes;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    FSDP_CHECK(ends[i] == tensors[i].bytes, ErrorCode::kInternal, "'", tensors[i].name,
               "': ", ends[i], " of ", tensors[i].bytes, " bytes were written");
  }
}

void write_documents(const Draft& draft, const std::map<std::string, std::string>& documents,
                     Index& index) {
  for (const auto& [name, content] : documents) {
    detail::write_file(draft.path() + "/" + name, content);
    index.files.push_back({.name = name,
                           .bytes = std::ssize(content),
                           .head_bytes = std::ssize(content),
                           .head_crc32 = crc32(content.data(), content.size())});
  }
}

void remove_scaffold(const Draft& draft) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(draft.path(), ignored)) {
    if (detail::is_scaffold_name(entry.path().filename().string())) {
      fs::remove(entry.path(), ignored);
    }
  }
}

/// Puts the draft in its place. A complete checkpoint that has the place is never away: both change
/// places at once, and what was there ends under the draft's name.
void publish(const Draft& draft) {
  const std::string target = draft.final_path();
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    detail::rename_path(draft.path(), target);
    return;
  }
  if (::renameat2(AT_FDCWD, draft.path().c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  FSDP_CHECK(errno != EINVAL && errno != ENOSYS, ErrorCode::kUnsupported, "'", target,
             "' exists and its file system cannot exchange it for the new one in one step: move it "
             "away first");
  detail::fail_io("exchange with '" + target + "'", draft.path());
}

/// Hides before it deletes: a kill in between leaves a draft, not half a checkpoint.
void remove_checkpoint(const Draft& place) {
  detail::rename_path(place.final_path(), place.path());
  std::error_code ignored;
  fs::remove_all(place.path(), ignored);
}

void prune(const Draft& draft, int keep) {
  if (keep <= 0) {
    return;
  }
  std::vector<FoundCheckpoint> complete;
  for (const FoundCheckpoint& found : list_checkpoints(draft.root)) {
    if (found.is_complete() && found.step != draft.step) {
      complete.push_back(found);
    }
  }
  const auto extra = std::ssize(complete) - (keep - 1);
  for (std::ptrdiff_t i = 0; i < extra; ++i) {
    remove_checkpoint(
        {.root = draft.root, .step = complete[static_cast<std::size_t>(i)].step, .key = draft.key});
  }
}

}  // namespace

void add_plan(Index& index, const FilePlan& plan) {
  for (const PlannedFile& file : plan.files) {
    index.files.push_back({.name = file.name,
                           .bytes = file.bytes,
                           .head_bytes = std::ssize(file.head),
                           .head_crc32 = crc32(file.head.data(), file.head.size())});
  }
  index.tensors.insert(index.tensors.end(), plan.tensors.begin(), plan.tensors.end());
}

void commit_draft(const Draft& draft, Index index, std::vector<PieceSum> sums,
                  const CommitOptions& options) {
  index.step = draft.step;
  enter_sums(index.tensors, std::move(sums));
  for (const StoredFile& file : index.files) {  // their heads; other ranks have synced the rest
    detail::File(draft.path() + "/" + file.name, detail::OpenMode::kWrite).sync();
  }
  write_documents(draft, options.documents, index);
  remove_scaffold(draft);
  detail::write_file(draft.path() + "/" + kIndexName, to_json(index));
  detail::sync_directory(draft.path());
  publish(draft);
  detail::sync_directory(draft.root);
  abandon_draft(draft);  // what an exchange has put there
  prune(draft, options.keep);
}

namespace {

int open_directory(const std::string& root) {
  std::error_code error;
  fs::create_directories(root, error);
  const int descriptor = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    errno = error ? error.value() : errno;
    detail::fail_io("create directory", root);
  }
  return descriptor;
}

}  // namespace

RootLock::RootLock(const std::string& root, double patience_s) : descriptor_(open_directory(root)) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() >= end) {
      ::close(std::exchange(descriptor_, -1));
      fail(ErrorCode::kIo, "another run saves to '", root,
           "': two would remove each other's checkpoints; end it or save elsewhere");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool RootLock::holds(const std::string& root) const {
  struct stat held{}, there{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(root.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

RootLock::~RootLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace fsdp::archive
