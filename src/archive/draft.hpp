// SPDX-License-Identifier: Apache-2.0
/// A checkpoint while it is being written. Ranks meet in its directory and need no collective: each
/// writes its own ranges, waits until the disk has them, and leaves a receipt with their sums; when
/// all receipts are there, one rank commits (commit.hpp). Nothing that is complete is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "archive/plan.hpp"
#include "fsdp/archive/index.hpp"

namespace fsdp::archive {

/// "step-00000100": the directory of a step's checkpoint.
std::string step_name(std::int64_t step);

/// Where a checkpoint is made and where it will be.
struct Draft {
  std::string root = {};  ///< the directory that holds all checkpoints of a run
  std::int64_t step = 0;
  std::uint64_t key = 0;  ///< the same on all ranks and new for each attempt

  std::string path() const;        ///< "<root>/.step-00000100.partial-<key>", hidden
  std::string final_path() const;  ///< "<root>/step-00000100"
};

/// Bytes of memory that a rank writes as a part of a tensor.
struct Piece {
  ByteRange range;
  const void* data = nullptr;
};

/// The sum of a part of a tensor.
struct PieceSum {
  std::size_t tensor = 0;  ///< position among the tensors of the index
  std::int64_t tensor_offset = 0;
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// Removes what earlier attempts left in the root, makes the draft's directory, and its files at
/// their full size with their heads. One rank calls it, before the others write.
/// @throws Error kIo when it cannot be written or when the disk has less room than the files need
void create_draft(const Draft& draft, const std::vector<PlannedFile>& files);

/// Writes a rank's pieces, in their order, and returns when the disk has them. `await` is called
/// before a piece's memory is read, and may wait for it. @throws Error kIo, kNotFound, and what
/// `await` throws
std::vector<PieceSum> write_pieces(const Draft& draft, const std::vector<Tensor>& tensors,
                                   const std::vector<Piece>& pieces,
                                   const std::function<void(const Piece&)>& await = {});

/// Says that rank `rank` has written all of its pieces. @throws Error kIo
void write_receipt(const Draft& draft, int rank, const std::vector<PieceSum>& sums);

/// The ranks that have left no receipt yet.
std::vector<int> missing_receipts(const Draft& draft, int ranks);

/// Says to the other ranks why one cannot write: beside the draft, which may go before they look.
/// The first word stays until the next draft in this root. Never throws.
void write_failure(const Draft& draft, const std::string& text) noexcept;

/// What write_failure() said, empty when nobody did.
std::string read_failure(const Draft& draft);

/// Removes it: all ranks know.
void forget_failure(const Draft& draft) noexcept;

/// The sums of all ranks; nothing while a receipt is missing. @throws Error kCorrupt, kIo
std::optional<std::vector<PieceSum>> read_receipts(const Draft& draft, int ranks);

/// For one that waits for receipts: in a directory that is gone none will come.
/// @throws Error kNotFound naming the directory
void check_there(const Draft& draft);

/// Removes the draft, whatever is there of it.
void abandon_draft(const Draft& draft) noexcept;

}  // namespace fsdp::archive
