// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "bad_input.hpp"
#include "commands.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/samples.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "places.hpp"
#include "token_progress.hpp"
#include "train_data.hpp"

namespace fsdp::apps {
namespace {

struct DataShowFlags {
  std::vector<std::string> inputs;
  std::string tokenizer, color = "auto";
  std::int64_t first = 1, count = 3, sequence = 0;
  std::string too_long = "cut";
};

/// How text that is learnt, and that is not, begins; and how both end.
struct Marks {
  const char* learned;
  const char* given;
  const char* end;
};
constexpr Marks kColors = {"\x1b[32m", "\x1b[2m", "\x1b[0m"};
constexpr Marks kPlain = {"\u27e6", "", "\u27e7"};

void show_document(const data::SampleFile& file, std::int64_t number,
                   const tokens::Tokenizer& tokenizer, const Marks& marks) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(file.document(number).tokens));
  std::vector<unsigned char> learned(ids.size());
  file.read(number, 0, ids, learned);
  std::printf("--- document %lld: %zu tokens, %lld learnt ---\n",
              static_cast<long long>(number + 1), ids.size(),
              static_cast<long long>(std::ranges::count(learned, 1)));
  for (std::size_t at = 0; at < ids.size();) {
    const bool is_learned = learned[at] != 0;
    const std::size_t begin = at;
    while (at < ids.size() && (learned[at] != 0) == is_learned) {
      ++at;
    }
    const std::string text = tokenizer.decode({ids.data() + begin, at - begin}, begin > 0);
    const bool has_end = is_learned || *marks.given != '\0';
    std::printf("%s%s%s", is_learned ? marks.learned : marks.given, tokens::printable(text).c_str(),
                has_end ? marks.end : "");
  }
  std::printf("\n\n");
}

int show(const DataShowFlags& flags) {
  as_bad_input([&] {
    std::vector<std::string> files;
    for (const std::string& input : flags.inputs) {
      const auto found = expanded("INPUT", input);
      files.insert(files.end(), found.begin(), found.end());
    }
    for (const std::string& file : files) {
      FSDP_CHECK(data::has_records(file), ErrorCode::kInvalidArgument, "'", file,
                 "' is no file of JSON lines (.jsonl, also .gz or .zst): of text all is learnt");
    }
    if (flags.tokenizer != "bytes") {
      need_path("--tokenizer", flags.tokenizer, Wanted::kModel);
    }
    const auto tokenizer = tokens::load(flags.tokenizer);
    TokenProgress progress("tokenizing");
    const data::SampleFile file(
        data::cached_samples(files, flags.tokenizer, data::default_token_cache(),
                             [&](const data::TokenizeProgress& now) { progress.show(now); }));
    const bool is_colored =
        flags.color == "always" || (flags.color == "auto" && ::isatty(STDOUT_FILENO) != 0);
    const std::int64_t end = std::min(file.documents(), flags.first - 1 + flags.count);
    for (std::int64_t number = flags.first - 1; number < end; ++number) {
      show_document(file, number, *tokenizer, is_colored ? kColors : kPlain);
    }
    const data::SampleCounts& counts = file.counts();
    std::printf("%lld records, %lld documents, %lld tokens, %lld learnt (%s)\n",
                static_cast<long long>(counts.records), static_cast<long long>(counts.documents),
                static_cast<long long>(counts.tokens), static_cast<long long>(counts.learned),
                is_colored ? "green" : "between \u27e6 and \u27e7");
    if (counts.split > 0) {
      std::printf(
          "%lld conversations became a document per answer: the template changes what stood "
          "before\n",
          static_cast<long long>(counts.split));
    }
    if (counts.shifted > 0) {
      std::printf("%lld answers share their first token with what stands before\n",
                  static_cast<long long>(counts.shifted));
    }
    if (flags.sequence > 0) {
      const data::Packing packing(
          file, {0, file.documents()}, flags.sequence,
          flags.too_long == "drop" ? data::TooLong::kDrop : data::TooLong::kCut);
      std::printf(
          "%lld rows of %lld tokens, %.1f %% full; %lld cut, %lld left out as too long, %lld "
          "with nothing to learn\n",
          static_cast<long long>(packing.rows()), static_cast<long long>(flags.sequence),
          100.0 * static_cast<double>(packing.places()) /
              static_cast<double>(packing.rows() * flags.sequence),
          static_cast<long long>(packing.cut()), static_cast<long long>(packing.dropped()),
          static_cast<long long>(packing.without_answer()));
    }
  });
  return kSuccess;
}

}  // namespace

Action add_data(CLI::App& app) {
  auto flags = std::make_shared<DataShowFlags>();
  CLI::App* command = app.add_subcommand("data", "Look at data as fsdp train sees it");
  command->require_subcommand(1);
  CLI::App* shown = command->add_subcommand(
      "show", "Documents of JSON lines, with what is learnt of them marked");
  shown->add_option("INPUT", flags->inputs, "Files of JSON lines, and patterns")->required();
  shown
      ->add_option("--tokenizer", flags->tokenizer,
                   "A model's directory, with its chat template; or \"bytes\"")
      ->required();
  shown->add_option("--first", flags->first, "The first document to show")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  shown->add_option("--count", flags->count, "How many to show")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  shown->add_option("--seq", flags->sequence, "Also say how they pack into rows of so many tokens")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  shown->add_option("--too-long", flags->too_long, "As for fsdp train")
      ->check(CLI::IsMember({"cut", "drop"}))
      ->capture_default_str();
  shown->add_option("--color", flags->color, "Mark by colour; auto: on a terminal")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  shown->footer(
      "Examples:\n"
      "  fsdp data show chats.jsonl --tokenizer models/smollm2 --seq 512\n"
      "\n"
      "Exit codes: 0 success, 2 bad input.");
  return [flags] { return show(*flags); };
}

}  // namespace fsdp::apps
