// SPDX-License-Identifier: Apache-2.0
#include "archive/draft.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include "archive/checksum.hpp"
#include "archive/draft_files.hpp"
#include "archive/file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;
using detail::File;
using detail::OpenMode;

namespace {

/// Summed and written at a time: the second pass over it finds it in the processor's cache.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
/// Lines of a receipt are short; a longer receipt is none.
constexpr std::int64_t kMostReceiptBytes = std::int64_t{1} << 30;
constexpr std::string_view kReceiptEnd = "end\n";

std::uint32_t write_summed(File& file, const Piece& piece) {
  const char* data = static_cast<const char*>(piece.data);
  std::uint32_t sum = 0;
  for (std::int64_t done = 0; done < piece.range.bytes; done += kChunkBytes) {
    const std::int64_t bytes = std::min(kChunkBytes, piece.range.bytes - done);
    sum = crc32(data + done, static_cast<std::size_t>(bytes), sum);
    file.write(data + done, bytes, piece.range.offset + done);
  }
  return sum;
}

std::string failure_path(const Draft& draft) { return draft.path() + ".failure"; }

void check_room(const Draft& draft, const std::vector<PlannedFile>& files) {
  std::int64_t needed = 0;
  for (const PlannedFile& file : files) {
    needed += file.bytes;
  }
  const std::int64_t free = detail::free_bytes(draft.root);
  FSDP_CHECK(free < 0 || needed <= free, ErrorCode::kIo, "cannot write '", draft.path(),
             "': No space left on device (", needed, " bytes needed, ", free,
             " free): free some space or save elsewhere");
}

}  // namespace

namespace detail {

std::string receipt_path(const Draft& draft, int rank) {
  return draft.path() + "/.receipt-" + std::to_string(rank);
}

std::string sign_path(const Draft& draft, int rank) {
  return draft.path() + "/.writer-" + std::to_string(rank);
}

bool is_scaffold_name(const std::string& name) {
  return name.starts_with(".receipt-") || name.starts_with(".writer-");
}

bool is_draft_name(const std::string& name) {
  return name.starts_with(".step-") && name.find(".partial-") != std::string::npos;
}

}  // namespace detail

std::string step_name(std::int64_t step) {
  char text[40];
  std::snprintf(text, sizeof text, "step-%08" PRId64, step);
  return text;
}

std::string Draft::path() const {
  char suffix[40];
  std::snprintf(suffix, sizeof suffix, ".partial-%016" PRIx64, key);
  return root + "/." + step_name(step) + suffix;
}

std::string Draft::final_path() const { return root + "/" + step_name(step); }

void create_draft(const Draft& draft, const std::vector<PlannedFile>& files) {
  FSDP_CHECK(draft.step >= 0, ErrorCode::kInvalidArgument, "a checkpoint of step ", draft.step);
  std::error_code error;
  fs::create_directories(draft.root, error);
  if (error) {
    errno = error.value();
    detail::fail_io("create directory", draft.root);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(draft.root, error)) {
    if (detail::is_draft_name(entry.path().filename().string())) {
      std::error_code ignored;  // what stays costs space and nothing else
      fs::remove_all(entry.path(), ignored);
    }
  }
  check_room(draft, files);
  if (!fs::create_directory(draft.path(), error) || error) {
    errno = error ? error.value() : EEXIST;
    detail::fail_io("create directory", draft.path());
  }
  for (const PlannedFile& planned : files) {
    File file(draft.path() + "/" + planned.name, OpenMode::kCreate);
    file.resize(planned.bytes);
    file.write(planned.head.data(), std::ssize(planned.head), 0);
  }
}

std::vector<PieceSum> write_pieces(const Draft& draft, const std::vector<Tensor>& tensors,
                                   const std::vector<Piece>& pieces,
                                   const std::function<void(const Piece&)>& await) {
  std::map<std::string, File> files;
  std::vector<PieceSum> sums;
  sums.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const std::string& name = tensors.at(piece.range.tensor).file;
    auto found = files.find(name);
    if (found == files.end()) {
      found = files.emplace(name, File(draft.path() + "/" + name, OpenMode::kWrite)).first;
    }
    if (await) {
      await(piece);
    }
    sums.push_back({.tensor = piece.range.tensor,
                    .tensor_offset = piece.range.tensor_offset,
                    .bytes = piece.range.bytes,
                    .crc32 = write_summed(found->second, piece)});
  }
  for (auto& [name, file] : files) {
    file.sync();
  }
  return sums;
}

void write_receipt(const Draft& draft, int rank, const std::vector<PieceSum>& sums) {
  std::ostringstream text;
  for (const PieceSum& sum : sums) {
    text << sum.tensor << ' ' << sum.tensor_offset << ' ' << sum.bytes << ' ' << sum.crc32 << '\n';
  }
  text << kReceiptEnd;
  // Renamed, so that whoever sees it sees all of it.
  const std::string path = detail::receipt_path(draft, rank);
  const std::string written = text.str();
  File(path + ".new", OpenMode::kCreate).write(written.data(), std::ssize(written), 0);
  detail::rename_path(path + ".new", path);
}

std::vector<int> missing_receipts(const Draft& draft, int ranks) {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (::access(detail::receipt_path(draft, rank).c_str(), F_OK) != 0) {
      missing.push_back(rank);
    }
  }
  return missing;
}

// A symbolic link is there with all of its text or not at all, and a full disk has room for one.
void write_failure(const Draft& draft, const std::string& text) noexcept {
  constexpr std::size_t kLongest = 1000;
  (void)!::symlink(text.substr(0, kLongest).c_str(), failure_path(draft).c_str());
}

std::string read_failure(const Draft& draft) {
  std::error_code none;
  return fs::read_symlink(failure_path(draft), none).string();
}

void forget_failure(const Draft& draft) noexcept { ::unlink(failure_path(draft).c_str()); }

std::optional<std::vector<PieceSum>> read_receipts(const Draft& draft, int ranks) {
  if (!missing_receipts(draft, ranks).empty()) {
    return std::nullopt;
  }
  std::vector<PieceSum> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = detail::receipt_path(draft, rank);
    const std::string text = detail::read_file(path, kMostReceiptBytes);
    FSDP_CHECK(text.ends_with(kReceiptEnd), ErrorCode::kCorrupt, "'", path, "' has no end");
    std::istringstream lines(text);
    for (PieceSum sum; lines >> sum.tensor >> sum.tensor_offset >> sum.bytes >> sum.crc32;) {
      sums.push_back(sum);
    }
  }
  return sums;
}

void check_there(const Draft& draft) {
  std::error_code ignored;
  FSDP_CHECK(fs::status(draft.path(), ignored).type() != fs::file_type::not_found,
             ErrorCode::kNotFound, "'", draft.path(), "' is not there any more: was '", draft.root,
             "' moved or removed while it was saved to?");
}

void abandon_draft(const Draft& draft) noexcept {
  // Another rank may put a file there just when the directory is empty.
  constexpr int kTries = 10;
  std::error_code error;
  for (int i = 0; i < kTries && (i == 0 || error); ++i) {
    fs::remove_all(draft.path(), error);
  }
}

}  // namespace fsdp::archive
