// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>

#include "fsdp/base/error.hpp"
#include "fsdp/data/samples.hpp"

namespace fsdp::data {

Packing::Packing(const SampleFile& file, Range documents, std::int64_t sequence, TooLong policy)
    : sequence_(sequence) {
  FSDP_CHECK(sequence > 0 && documents.begin >= 0 && documents.end <= file.documents(),
             ErrorCode::kInvalidArgument, "documents ", documents.begin, " to ", documents.end,
             " of ", file.documents(), " in rows of ", sequence, " tokens");
  std::vector<Piece> all;
  for (std::int64_t number = documents.begin; number < documents.end; ++number) {
    const SampleFile::Document document = file.document(number);
    // The first token is predicted by none.
    const std::int64_t places = document.tokens - 1;
    if (places < 1 || document.first_learned >= document.tokens) {
      ++without_answer_;
    } else if (document.is_text) {
      for (std::int64_t first = 0; first < places; first += sequence) {
        all.push_back({number, first, std::min(sequence, places - first)});
      }
    } else if (places <= sequence) {
      all.push_back({number, 0, places});
    } else if (policy == TooLong::kCut && document.first_learned <= sequence) {
      ++cut_;
      all.push_back({number, 0, sequence});
    } else {
      ++dropped_;
    }
  }
  FSDP_CHECK(!all.empty(), ErrorCode::kInvalidArgument, "of ", documents.size(),
             " documents none is left to learn from: ", dropped_, " are longer than ", sequence,
             " tokens (--seq), ", without_answer_, " have nothing that is learnt");
  std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(b.places, a.document, a.first) < std::tuple(a.places, b.document, b.first);
  });
  std::vector<std::vector<Piece>> rows;
  std::multimap<std::int64_t, std::size_t> room;  // of rows that have some
  for (const Piece& piece : all) {
    places_ += piece.places;
    std::size_t row = rows.size();
    std::int64_t left = sequence;
    if (const auto fitting = room.lower_bound(piece.places); fitting != room.end()) {
      row = fitting->second;
      left = fitting->first;
      room.erase(fitting);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(piece);
    if (left > piece.places) {
      room.emplace(left - piece.places, row);
    }
  }
  pieces_.reserve(all.size());
  for (const std::vector<Piece>& row : rows) {
    begins_.push_back(std::ssize(pieces_));
    pieces_.insert(pieces_.end(), row.begin(), row.end());
  }
  begins_.push_back(std::ssize(pieces_));
}

std::span<const Packing::Piece> Packing::row(std::int64_t number) const {
  const auto begin = begins_.at(static_cast<std::size_t>(number));
  const auto end = begins_.at(static_cast<std::size_t>(number) + 1);
  return {pieces_.data() + begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace fsdp::data
