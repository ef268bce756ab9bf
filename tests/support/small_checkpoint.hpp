// SPDX-License-Identifier: Apache-2.0
/// Writes checkpoints of a few small tensors whose bytes follow from the step, as a number of ranks
/// would, without LibTorch.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "archive/commit.hpp"
#include "archive/draft.hpp"
#include "archive/plan.hpp"
#include "fsdp/archive/reader.hpp"

namespace fsdp::test {

/// The byte at `position` of tensor `tensor` in the checkpoint of `step`.
inline char byte_of(std::int64_t step, std::size_t tensor, std::int64_t position) {
  return static_cast<char>(step * 31 + static_cast<std::int64_t>(tensor) * 7 + position);
}

/// Odd sizes, no element, no dimension, more than one dtype.
inline std::vector<format::TensorEntry> small_entries() {
  return {{"a", "F32", {5, 3}},    {"b.weight", "F64", {7}}, {"half", "BF16", {3}},
          {"none", "F32", {0, 4}}, {"scalar", "F32", {}},    {"z", "U8", {41}}};
}

struct SmallPlan {
  std::vector<archive::PlannedFile> files;
  archive::Index index;
};

inline SmallPlan small_plan(std::int64_t max_file_bytes = 1 << 20) {
  SmallPlan plan;
  const auto add = [&](archive::Section section, const std::vector<format::TensorEntry>& entries) {
    const auto part = archive::plan_files(section, entries, {{"format", "pt"}}, max_file_bytes);
    plan.files.insert(plan.files.end(), part.files.begin(), part.files.end());
    archive::add_plan(plan.index, part);
  };
  add(archive::Section::kModel, small_entries());
  add(archive::Section::kOptimizer, {{"a.exp_avg", "F32", {5, 3}}});
  plan.index.aliases = {{"tied", "a"}};
  plan.index.steps = {{"a", 3}};
  plan.index.values = {{"data", {{"next_sample", std::int64_t{12}}, {"seed", std::string("7")}}},
                       {"schedule", {{"lr", 0.037}, {"warm", true}}}};
  return plan;
}

/// Rank `rank` of `ranks` takes the rank-th of equal parts of each tensor.
inline std::vector<archive::ByteRange> small_ranges(const std::vector<archive::Tensor>& tensors,
                                                    int rank, int ranks) {
  std::vector<archive::Slice> slices;
  for (const archive::Tensor& tensor : tensors) {
    const std::int64_t numel = archive::numel(tensor.shape);
    const std::int64_t part = (numel + ranks - 1) / ranks;
    slices.push_back({std::min(numel, part * rank), std::min(numel, part * (rank + 1))});
  }
  return archive::plan_ranges(tensors, slices);
}

/// What one rank does: writes its pieces of `step` and leaves its receipt.
inline void write_small_rank(const archive::Draft& draft, const SmallPlan& plan, int rank,
                             int ranks) {
  const auto ranges = small_ranges(plan.index.tensors, rank, ranks);
  std::vector<std::vector<char>> bytes;
  std::vector<archive::Piece> pieces;
  for (const archive::ByteRange& range : ranges) {
    auto& held = bytes.emplace_back();
    for (std::int64_t i = 0; i < range.bytes; ++i) {
      held.push_back(byte_of(draft.step, range.tensor, range.tensor_offset + i));
    }
    pieces.push_back({.range = range, .data = held.data()});
  }
  archive::write_receipt(draft, rank, archive::write_pieces(draft, plan.index.tensors, pieces));
}

/// A whole save by `ranks` ranks, one after the other.
inline void save_small(const std::string& root, std::int64_t step, int ranks = 1,
                       const archive::CommitOptions& options = {},
                       std::int64_t max_file_bytes = 1 << 20) {
  const SmallPlan plan = small_plan(max_file_bytes);
  const archive::Draft draft{.root = root, .step = step, .key = 0x1a2b3c};
  archive::create_draft(draft, plan.files);
  for (int rank = 0; rank < ranks; ++rank) {
    write_small_rank(draft, plan, rank, ranks);
  }
  archive::commit_draft(draft, plan.index, archive::read_receipts(draft, ranks).value(), options);
}

/// Whether every byte at `path` is that of `step`; says what is not.
inline std::string wrong_in_small(const std::string& path, std::int64_t step) {
  for (const std::string& problem : archive::verify_checkpoint(path)) {
    return problem;
  }
  const archive::Checkpoint checkpoint(path);
  if (checkpoint.index().step != step) {
    return "the index is of step " + std::to_string(checkpoint.index().step);
  }
  for (std::size_t i = 0; i < checkpoint.index().tensors.size(); ++i) {
    const archive::Tensor& tensor = checkpoint.index().tensors[i];
    std::vector<char> bytes(static_cast<std::size_t>(tensor.bytes));
    checkpoint.read(tensor, 0, tensor.bytes, bytes.data());
    for (std::int64_t at = 0; at < tensor.bytes; ++at) {
      if (bytes[static_cast<std::size_t>(at)] != byte_of(step, i, at)) {
        return tensor.name + " has bytes of another step";
      }
    }
  }
  return "";
}

}  // namespace fsdp::test
