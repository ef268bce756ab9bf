// SPDX-License-Identifier: Apache-2.0
#include "train/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/sampler.hpp"
#include "fsdp/data/samples.hpp"
#include "train/progress.hpp"
#include "train/same_run.hpp"

namespace fsdp::train::detail {
namespace {

/// models::PackedBatch::kNoTarget, whose header has LibTorch.
constexpr std::int64_t kNoTarget = -100;
constexpr double kKeptAside = 0.05;

/// The documents to learn from, and those kept aside.
data::Split split(const data::SampleFile& file, const std::string& path) {
  const std::int64_t count = file.documents();
  FSDP_CHECK(count >= 2, ErrorCode::kInvalidArgument, "'", path, "' has ", count,
             " document: at least one to learn from and one to validate are needed, or --val-data");
  const auto wanted =
      static_cast<std::int64_t>(std::llround(static_cast<double>(count) * kKeptAside));
  const std::int64_t aside = std::clamp<std::int64_t>(wanted, 1, count - 1);
  return {.train = {0, count - aside}, .validation = {count - aside, count}};
}

}  // namespace

/// Either windows of a corpus, or rows of packed documents.
struct Dataset::Source {
  std::string name;
  double weight = 1;
  std::optional<data::Corpus> corpus;
  std::optional<data::SampleFile> samples;
  // By part; none where the source has only the other.
  std::optional<data::Windows> windows[2];
  std::optional<data::Packing> packing[2];
  data::Range range[2];  ///< of tokens, or of documents

  std::int64_t rows(Part part) const {
    const auto i = static_cast<std::size_t>(part);
    return windows[i] ? windows[i]->count() : packing[i] ? packing[i]->rows() : 0;
  }
  /// As often as the weight says.
  std::int64_t weighted_rows(Part part) const {
    const std::int64_t own = rows(part);
    return part == Part::kValidation
               ? own
               : static_cast<std::int64_t>(std::ceil(static_cast<double>(own) * weight));
  }
};

struct Dataset::Place {
  const Source* source;
  std::int64_t row;
};

Dataset::Dataset(const TrainConfig& config) : sequence_(config.sequence) {
  const bool has_validation = !config.validation.empty();
  const auto open = [&](const DataSource& from, bool is_training, bool is_validation) {
    auto source = std::make_unique<Source>();
    source->name = from.name.empty() ? base::list_text(from.paths) : from.name;
    source->weight = from.weight;
    data::Split parts;
    if (from.is_samples) {
      source->samples.emplace(from.paths.front());
      const std::int64_t all = source->samples->documents();
      parts = is_training && is_validation ? split(*source->samples, source->name)
                                           : data::Split{{0, all}, {0, all}};
      is_packed_ = true;
      is_text_ = is_text_ && config.tokenizer.empty();
    } else {
      source->corpus.emplace(data::Corpus::open(from.paths));
      const std::int64_t all = source->corpus->tokens();
      parts = is_training && is_validation ? data::split(*source->corpus, sequence_)
                                           : data::Split{{0, all}, {0, all}};
      is_text_ = is_text_ && source->corpus->is_text();
    }
    const auto add = [&](Part part, data::Range range) {
      const auto i = static_cast<std::size_t>(part);
      source->range[i] = range;
      if (source->corpus) {
        FSDP_CHECK(range.size() > sequence_, ErrorCode::kInvalidArgument, "'", source->name,
                   "' has ", range.size(), " tokens; a sequence of ", sequence_,
                   " and its target take more");
        source->windows[i].emplace(range, sequence_);
      } else {
        source->packing[i].emplace(*source->samples, range, sequence_, config.too_long);
      }
    };
    if (is_training) {
      add(Part::kTraining, parts.train);
    }
    if (is_validation) {
      add(Part::kValidation, parts.validation);
    }
    sources_.push_back(std::move(source));
  };
  for (const DataSource& source : config.data) {
    open(source, true, !has_validation);
  }
  for (const DataSource& source : config.validation) {
    open(source, false, true);
  }
  FSDP_CHECK(!config.data.empty(), ErrorCode::kInvalidArgument, "there is no data to learn from");
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

std::int64_t Dataset::rows(Part part) const {
  std::int64_t sum = 0;
  for (const auto& source : sources_) {
    sum += source->weighted_rows(part);
  }
  return sum;
}

std::int64_t Dataset::tokens(Part part) const {
  const auto i = static_cast<std::size_t>(part);
  std::int64_t sum = 0;
  for (const auto& source : sources_) {
    sum += source->windows[i] ? source->range[i].size()
                              : (source->packing[i] ? source->packing[i]->places() : 0);
  }
  return sum;
}

Dataset::Place Dataset::place_of(Part part, std::int64_t row) const {
  FSDP_ASSERT(row >= 0, "row ", row);
  for (const auto& source : sources_) {
    const std::int64_t own = source->weighted_rows(part);
    if (row < own) {
      return {source.get(), row % source->rows(part)};
    }
    row -= own;
  }
  FSDP_ASSERT(false, "a row beyond the last by ", row);
  return {};
}

std::int64_t Dataset::read(Part part, std::int64_t row, std::span<std::int64_t> tokens,
                           std::span<std::int64_t> targets,
                           std::vector<std::int64_t>& documents) const {
  const auto [source, own] = place_of(part, row);
  const auto i = static_cast<std::size_t>(part);
  documents.clear();
  std::vector<std::int64_t> found;
  if (source->windows[i]) {
    found.resize(tokens.size() + 1);
    source->corpus->read(source->windows[i]->begin(own), found);
    std::copy_n(found.begin(), tokens.size(), tokens.begin());
    std::copy_n(found.begin() + 1, tokens.size(), targets.begin());
    documents.push_back(sequence_);
    return sequence_;
  }
  std::fill(tokens.begin(), tokens.end(), 0);
  std::fill(targets.begin(), targets.end(), kNoTarget);
  std::vector<unsigned char> learned;
  std::size_t at = 0;
  std::int64_t counted = 0;
  for (const data::Packing::Piece& piece : source->packing[i]->row(own)) {
    const auto places = static_cast<std::size_t>(piece.places);
    found.resize(places + 1);
    learned.resize(places + 1);
    source->samples->read(piece.document, piece.first, found, learned);
    for (std::size_t k = 0; k < places; ++k) {
      tokens[at + k] = found[k];
      if (learned[k + 1] != 0) {
        targets[at + k] = found[k + 1];
        ++counted;
      }
    }
    documents.push_back(piece.places);
    at += places;
  }
  if (at < tokens.size()) {
    documents.push_back(static_cast<std::int64_t>(tokens.size() - at));
  }
  return counted;
}

std::string Dataset::hash() const {
  if (sources_.size() == 1 && sources_.front()->corpus) {
    return data_hash(*sources_.front()->corpus);
  }
  constexpr std::int64_t kPlaces = 64;
  base::Fnv1a hash;
  for (const auto& source : sources_) {
    if (source->corpus) {
      hash.add(data_hash(*source->corpus));
      continue;
    }
    const data::SampleFile& file = *source->samples;
    hash.add_value(file.counts());
    hash.add_value(file.fingerprint());
    std::vector<std::int64_t> tokens;
    std::vector<unsigned char> learned;
    const std::int64_t count = file.documents();
    for (std::int64_t place = 0; place < std::min(kPlaces, count); ++place) {
      const std::int64_t number = count <= kPlaces ? place : count / kPlaces * place;
      tokens.resize(static_cast<std::size_t>(file.document(number).tokens));
      learned.resize(tokens.size());
      file.read(number, 0, tokens, learned);
      hash.add(std::as_bytes(std::span(tokens)));
      hash.add(std::as_bytes(std::span(learned)));
    }
  }
  return std::to_string(hash.value());
}

void Dataset::check_vocabulary(std::int64_t vocab) const {
  for (const auto& source : sources_) {
    if (source->corpus) {
      source->corpus->check_vocabulary(vocab);
    } else {
      FSDP_CHECK(source->samples->vocab() <= vocab, ErrorCode::kInvalidArgument, "'", source->name,
                 "' was made with ", source->samples->vocab(),
                 " ids, outside of the vocabulary of ", vocab);
    }
  }
}

std::vector<std::string> Dataset::description() const {
  std::vector<std::string> lines;
  for (const auto& source : sources_) {
    std::ostringstream text;
    text << source->name << ": ";
    const auto part_text = [&](Part part, const char* purpose) {
      const auto i = static_cast<std::size_t>(part);
      if (source->windows[i]) {
        text << format_count(source->range[i].size())
             << (source->corpus->is_text() ? " bytes" : " tokens") << purpose;
      } else if (source->packing[i]) {
        text << format_count(source->range[i].size()) << " documents in "
             << format_count(source->packing[i]->rows()) << " rows" << purpose;
      }
    };
    part_text(Part::kTraining, " to learn from");
    const bool has_both = source->rows(Part::kTraining) > 0 && source->rows(Part::kValidation) > 0;
    text << (has_both ? ", " : "");
    part_text(Part::kValidation, " to validate");
    if (source->weight != 1) {
      text << ", weight " << source->weight;
    }
    lines.push_back(text.str());
    if (source->samples) {
      const data::SampleCounts& counts = source->samples->counts();
      std::ostringstream more;
      more << "  " << format_count(counts.learned) << " of " << format_count(counts.tokens)
           << " tokens are learnt";
      std::int64_t cut = 0, dropped = 0, without = 0;
      for (const auto& packing : source->packing) {
        cut += packing ? packing->cut() : 0;
        dropped += packing ? packing->dropped() : 0;
        without += packing ? packing->without_answer() : 0;
      }
      const auto also = [&](std::int64_t count, const char* words) {
        if (count > 0) {
          more << "; " << format_count(count) << words;
        }
      };
      also(cut, " longer than --seq are cut");
      also(dropped, " longer than --seq are left out");
      also(without, " have nothing to learn");
      also(counts.split,
           " conversations became a document per answer, as their template changes "
           "what stood before");
      also(counts.shifted, " answers share their first token with what stands before");
      lines.push_back(more.str());
    }
  }
  return lines;
}

}  // namespace fsdp::train::detail
