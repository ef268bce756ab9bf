// SPDX-License-Identifier: Apache-2.0
/// All that a run learns from and is judged by, as numbered rows of a batch, whatever they are made
/// of: windows of texts and token files, or documents that are packed. Free of LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/config.hpp"

namespace fsdp::train::detail {

/// What rows are for.
enum class Part { kTraining, kValidation };

/// *Invariants*: at least one row in each part. *Thread safety*: immutable; reads may run side by
/// side.
class Dataset {
 public:
  /// Opens config.data and config.validation; without the latter the last twentieth of each source
  /// is kept aside. @throws Error as data::Corpus, data::SampleFile, data::split() and
  /// data::Packing
  explicit Dataset(const TrainConfig& config);
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) = delete;

  /// Rows of an epoch: those of each source, as often as its weight says, rounded up.
  std::int64_t rows(Part part) const;
  /// Tokens of which the rows of a part are made, weights left out.
  std::int64_t tokens(Part part) const;
  std::int64_t sequence() const { return sequence_; }
  /// Whether tokens are bytes of texts.
  bool is_text() const { return is_text_; }
  /// Whether rows may hold several documents, or tokens that nothing is learnt from.
  bool is_packed() const { return is_packed_; }

  /// A row's tokens and, at the same place, what follows each: kNoTarget of models::PackedBatch
  /// where nothing is learnt. `documents` gets the lengths of its documents. Returns how many
  /// targets count.
  std::int64_t read(Part part, std::int64_t row, std::span<std::int64_t> tokens,
                    std::span<std::int64_t> targets, std::vector<std::int64_t>& documents) const;

  /// What tells this data from other data of as many rows: a hash of tokens in some places of each
  /// source.
  std::string hash() const;
  /// Looks at every token. @throws Error kInvalidArgument for one that is `vocab` or more
  void check_vocabulary(std::int64_t vocab) const;
  /// A line for each source: its path, what it is, how much is learnt and left out.
  std::vector<std::string> description() const;

 private:
  struct Source;
  struct Place;
  Place place_of(Part part, std::int64_t row) const;

  std::int64_t sequence_;
  bool is_text_ = true, is_packed_ = false;
  std::vector<std::unique_ptr<Source>> sources_;
};

}  // namespace fsdp::train::detail
