// SPDX-License-Identifier: Apache-2.0
/// What an earlier run left where a run is to write: its checkpoints would be deleted as too many
/// or taken for the new run's, and its log would be lost.
#include "train/earlier_run.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/sampler.hpp"
#include "train/dataset.hpp"
#include "train/model.hpp"
#include "train/run_log.hpp"
#include "train/same_run.hpp"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kRecord = "run.json";
constexpr const char* kLog = "log";

/// A path that two runs in different directories write alike.
std::string absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

/// A checkpoint of fsdp train: what it says of the run that saved it.
class Saved {
 public:
  explicit Saved(const std::string& path) : checkpoint_(path), source_(path) {}

  std::int64_t step() const { return checkpoint_.index().step; }
  const std::string& path() const { return checkpoint_.path(); }

  template <class T>
  T value(const std::string& section, const std::string& key) const {
    const auto& sections = checkpoint_.index().values;
    const auto values = sections.find(section);
    const T* held = nullptr;
    if (values != sections.end() && values->second.contains(key)) {
      held = std::get_if<T>(&values->second.at(key));
    }
    FSDP_CHECK(held != nullptr, ErrorCode::kInvalidArgument, "'", path(), "' has no ", section, ".",
               key, ": fsdp train did not write it; --init begins with its weights");
    return *held;
  }

  /// Nothing in a checkpoint of before that text was saved.
  std::optional<std::string> text(const std::string& section, const std::string& key) const {
    const auto& values = checkpoint_.index().values.at(section);
    return values.contains(key) ? std::optional(archive::to_text(values.at(key))) : std::nullopt;
  }

  /// The text of a file in it; empty for none.
  std::string document(const std::string& name) const {
    const auto found = source_.documents().find(name);
    return found == source_.documents().end() ? "" : found->second;
  }

 private:
  archive::Checkpoint checkpoint_;
  archive::WeightSource source_;
};

/// "n_head 4 there and 2 here", for all fields of two configurations that differ and that weights
/// of the same shapes would not show.
std::string differences(const std::string& there, const std::string& here) {
  // What a run may change, and what the weights do not depend on.
  static const std::set<std::string> kFree = {
      "resid_pdrop",  "embd_pdrop",   "attn_pdrop",  "attention_dropout", "base_model_name_or_path",
      "bos_token_id", "eos_token_id", "pad_token_id"};
  const auto left = ordered_json::parse(there, nullptr, /*allow_exceptions=*/false);
  const auto right = ordered_json::parse(here, nullptr, /*allow_exceptions=*/false);
  std::string text;
  for (const auto& field : right.items()) {
    const std::string& key = field.key();
    if (!kFree.contains(key) && left.is_object() && left.contains(key) &&
        left[key] != field.value()) {
      base::append_to_list(
          text, key + " " + left[key].dump() + " there and " + field.value().dump() + " here");
    }
  }
  return text;
}

void check_model(const Saved& saved, const TrainConfig& config) {
  auto ours = detail::model_documents(config);
  for (const char* name : {"config.json", format::kAdapterConfig}) {
    const std::string there = saved.document(name);
    FSDP_CHECK(
        there.empty() == ours[name].empty() || std::string(name) == "config.json",
        ErrorCode::kInvalidArgument, "'", saved.path(), "' ",
        there.empty() ? "has no adapters, this run trains some" : "trains adapters, this run none",
        ": resume with the same --lora-rank");
    const std::string found = differences(there, ours[name]);
    FSDP_CHECK(found.empty(), ErrorCode::kInvalidArgument, "'", saved.path(),
               "' is of another model: ", found,
               "; --resume goes on with the same options, another --save begins anew");
  }
  const auto optimizer = saved.value<std::string>("config", "optimizer");
  FSDP_CHECK(optimizer == to_string(config.optimizer), ErrorCode::kInvalidArgument, "'",
             saved.path(), "' has the state of --optimizer ", optimizer, ", not of ",
             to_string(config.optimizer));
}

/// The position in the data belongs to this data, this seed and this length.
void check_position(const Saved& saved, const TrainConfig& config) {
  const auto text = saved.value<std::string>("data", "seed");
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  FSDP_CHECK(error == std::errc() && end == text.data() + text.size(), ErrorCode::kInvalidArgument,
             "'", saved.path(), "': data.seed is '", text, "'");
  const detail::Dataset data(config);
  data::Sampler(data.rows(detail::Part::kTraining), config.seed)
      .resume({.seed = seed,
               .windows = saved.value<std::int64_t>("data", "windows"),
               .next_sample = saved.value<std::int64_t>("data", "next_sample")});
  const std::string here = data.hash();
  const std::string there = saved.text("data", "hash").value_or(here);
  FSDP_CHECK(there == here, ErrorCode::kInvalidArgument, "'", saved.path(),
             "' was trained on other data than --data '", config.data.front().paths.front(),
             "', which has as many windows but other tokens (their hash is ", there, " there and ",
             here, " here): --resume goes on with the same data, another --save begins anew");
  FSDP_CHECK(saved.step() <= config.steps, ErrorCode::kInvalidArgument, "'", saved.path(),
             "' is at step ", saved.step(), ", beyond --steps ", config.steps);
}

/// Whether the run in `save` says that this log is its own.
bool is_recorded(const TrainConfig& config) {
  const fs::path path = fs::path(config.save) / kRecord;
  base::need_regular(path.string());
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto record = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains(kLog) && record[kLog] == absolute(config.log);
}

bool has_content(const std::string& path) {
  std::error_code error;
  return !path.empty() && fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
}

constexpr const char* kAnotherLog =
    "; give --log another name, or move the file away: nothing is overwritten";

void check_log(const TrainConfig& config, const Saved* saved) {
  if (!has_content(config.log)) {
    return;
  }
  FSDP_CHECK(config.resume, ErrorCode::kInvalidArgument, "--log '", config.log,
             "' is there already: an earlier run's lines are appended to when --resume goes on "
             "with that run",
             kAnotherLog);
  const auto loss =
      saved == nullptr ? std::nullopt : detail::logged_loss(config.log, saved->step());
  if (loss) {
    // Doubles are written so that they read back as the same bits.
    const auto expected = saved->value<double>("progress", "loss");
    FSDP_CHECK(*loss == expected, ErrorCode::kInvalidArgument, "--log '", config.log,
               "' is of another run: its step ", saved->step(), " has the loss ", *loss, ", '",
               saved->path(), "' has ", expected, kAnotherLog);
    return;
  }
  FSDP_CHECK(is_recorded(config), ErrorCode::kInvalidArgument, "--log '", config.log,
             "' has lines, but none that belongs to the run in --save '", config.save, "'",
             kAnotherLog);
}

/// A directory that a save left before it ended, under a hidden name, is no checkpoint yet.
bool is_draft(const archive::FoundCheckpoint& found) {
  return fs::path(found.path).filename().string().starts_with('.');
}

void check_unused(const TrainConfig& config) {
  std::error_code ignored;
  if (config.save.empty() || fs::status(config.save, ignored).type() == fs::file_type::not_found) {
    return;
  }
  auto all = archive::list_checkpoints(config.save);
  std::erase_if(all, is_draft);
  FSDP_CHECK(all.empty(), ErrorCode::kInvalidArgument, "--save '", config.save, "' holds ",
             all.size(), all.size() == 1 ? " checkpoint" : " checkpoints",
             " of an earlier run, up to step ", all.empty() ? 0 : all.back().step,
             ": --resume goes on from there, another directory begins anew");
}

void check_earlier(const TrainConfig& config) {
  if (!config.resume) {
    check_unused(config);
    check_log(config, nullptr);
    return;
  }
  const auto latest = archive::latest_checkpoint(config.save);
  if (!latest.found) {
    check_log(config, nullptr);
    return;
  }
  const Saved saved(latest.found->path);
  check_position(saved, config);
  check_model(saved, config);
  check_log(config, &saved);
}

}  // namespace

void check_earlier_run(const TrainConfig& config) {
  try {
    check_earlier(config);
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, error.text());
  }
}

void detail::record_run(const TrainConfig& config) {
  if (config.save.empty() || config.log.empty()) {
    return;
  }
  std::error_code error;
  fs::create_directories(config.save, error);
  const std::string path = (fs::path(config.save) / kRecord).string();
  std::ofstream file(path);
  file << ordered_json{{kLog, absolute(config.log)}}.dump() << "\n";
  file.close();
  FSDP_CHECK(file, ErrorCode::kIo, "'", path, "' cannot be written: ", std::strerror(errno));
}

}  // namespace fsdp::train
