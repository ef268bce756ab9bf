// SPDX-License-Identifier: Apache-2.0
#include "train_data.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "bad_input.hpp"
#include "base/text.hpp"
#include "data/content.hpp"
#include "data/files_under.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/samples.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/format/token_file.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "places.hpp"
#include "token_progress.hpp"

namespace fsdp::apps {
namespace {

constexpr std::int64_t kByteVocabulary = 256;
constexpr const char* kBytes = "bytes";

enum class Kind { kText, kTokens, kRecords };

/// What one --data names.
struct Input {
  std::string name;
  std::vector<std::string> paths;  ///< files; of text or tokens also a directory
  Kind kind = Kind::kText;
};

bool is_compressed(const std::string& path) { return data::detail::plain_name(path) != path; }

/// Text or tokens; all that is wrong with what the user named is bad input, also its rights.
Kind kind_of(const std::vector<std::string>& paths, bool any_bytes) {
  try {
    std::vector<std::string> files;
    for (const std::string& path : paths) {
      std::error_code ignored;
      const auto below = std::filesystem::is_directory(path, ignored)
                             ? data::detail::files_under(path)
                             : std::vector<std::string>{path};
      files.insert(files.end(), below.begin(), below.end());
    }
    const auto records = any_bytes ? 0 : std::ranges::count_if(files, data::has_records);
    FSDP_CHECK(records == 0 || records == std::ssize(files), ErrorCode::kInvalidArgument, "'",
               base::list_text(paths), "' holds ", records, " files of JSON lines and ",
               std::ssize(files) - records,
               " others: one kind at a time; --data may be given several times");
    if (records > 0) {
      return Kind::kRecords;
    }
    return data::Corpus::open(paths).is_text() ? Kind::kText : Kind::kTokens;
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, error.text());
  }
}

Input input_of(const std::string& option, const std::string& pattern, bool any_bytes) {
  Input input{.name = pattern, .paths = expanded(option, pattern)};
  input.kind = kind_of(input.paths, any_bytes);
  if (input.kind == Kind::kRecords) {
    // A sample file is made of files.
    std::vector<std::string> files;
    for (const std::string& path : input.paths) {
      std::error_code ignored;
      const auto below = std::filesystem::is_directory(path, ignored)
                             ? data::detail::files_under(path)
                             : std::vector<std::string>{path};
      files.insert(files.end(), below.begin(), below.end());
    }
    input.paths = files;
  }
  return input;
}

/// Where the tokens of a token file come from; nothing known for anything else. What is wrong with
/// it the check of the whole configuration tells.
format::TokenOrigin origin_of(const Input& input) {
  std::error_code ignored;
  const std::string& path = input.paths.front();
  if (input.kind == Kind::kTokens && std::filesystem::is_regular_file(path, ignored)) {
    try {
      return format::inspect_token_file(path).origin;
    } catch (const Error&) {
      return {};
    }
  }
  return {};
}

void check_origin(const train::TrainConfig& config, const Input& input,
                  const tokens::Tokenizer& tokenizer) {
  const format::TokenOrigin origin = origin_of(input);
  FSDP_CHECK(origin.vocab == 0 || origin.fingerprint == tokenizer.fingerprint(),
             ErrorCode::kInvalidArgument, "'", input.name, "' was made with ", origin.tokenizer,
             " of ", origin.vocab, " ids, --tokenizer '", config.tokenizer, "' is ",
             tokenizer.name(), " of ", tokenizer.vocab_size(), ": another vocabulary");
}

void set_vocab(train::TrainConfig& config, std::int64_t vocab) {
  std::visit([&](auto& model) { model.vocab = vocab; }, config.model);
}

/// The tokenizer that lies beside the weights of --init, for text.
std::string found_tokenizer(const train::TrainConfig& config) {
  const std::string way = "; --tokenizer PATH names " +
                          std::string(config.tokenizer.empty() ? "one" : "another") +
                          ", --bytes trains on bytes all the same";
  const std::string path = tokenizer_beside(config.init);
  const std::int64_t vocab = models::sizes(config.model).vocab;
  FSDP_CHECK(!path.empty() || vocab == kByteVocabulary, ErrorCode::kInvalidArgument, "--init '",
             config.init, "' has no tokenizer beside it and ", vocab,
             " tokens, so they are no bytes", way);
  if (!path.empty()) {
    as_bad_input([&] { tokens::load(path); }, way);
  }
  return path;
}

/// The same for tokens, which are numbers already: it only shows the sample as text.
std::string usable_tokenizer(const train::TrainConfig& config) {
  const std::string path = tokenizer_beside(config.init);
  try {
    return path.empty() || tokens::load(path) ? path : "";
  } catch (const Error&) {
    return "";
  }
}

/// As it is trained on. `tokenizer` is a path, or "bytes".
train::DataSource prepared(const train::TrainConfig& config, const Input& input,
                           const std::string& tokenizer) {
  const bool has_files = tokenizer != kBytes || !tokens::files_of(tokenizer).empty();
  const bool is_packed = std::ranges::any_of(input.paths, is_compressed);
  train::DataSource source{.paths = input.paths, .name = input.name};
  if (input.kind == Kind::kTokens || (input.kind == Kind::kText && !has_files && !is_packed)) {
    return source;
  }
  TokenProgress progress("tokenizing '" + input.name + "'");
  const auto show = [&](const data::TokenizeProgress& now) { progress.show(now); };
  if (input.kind == Kind::kRecords) {
    source.is_samples = true;
    source.paths = {
        data::cached_samples(input.paths, tokenizer, data::default_token_cache(), show)};
  } else {
    source.paths = {data::cached_tokens(input.paths, tokenizer, data::default_token_cache(),
                                        {.any_bytes = config.any_bytes, .progress = show})};
  }
  return source;
}

}  // namespace

std::vector<std::string> expanded(const std::string& option, const std::string& pattern) {
  std::error_code error;
  const bool is_pattern = pattern.find_first_of("*?[") != std::string::npos;
  if (!is_pattern || std::filesystem::exists(pattern, error)) {
    need_path(option, pattern, Wanted::kData);
    return {pattern};
  }
  ::glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv,
                                 found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  FSDP_CHECK(!paths.empty(), ErrorCode::kInvalidArgument, option, " '", pattern,
             "': no file fits this pattern");
  return paths;
}

void use_data(train::TrainConfig& config, const DataFlags& flags, bool is_vocab_given) {
  FSDP_CHECK(flags.weights.empty() || flags.weights.size() == flags.data.size(),
             ErrorCode::kInvalidArgument, "--data-weights has ", flags.weights.size(),
             " numbers for ", flags.data.size(), " --data: one for each");
  std::vector<Input> inputs, validation;
  for (const std::string& pattern : flags.data) {
    inputs.push_back(input_of("--data", pattern, config.any_bytes));
  }
  for (const std::string& pattern : flags.validation) {
    validation.push_back(input_of("--val-data", pattern, config.any_bytes));
  }
  std::vector<Input> all = inputs;
  all.insert(all.end(), validation.begin(), validation.end());
  const bool has_text =
      std::ranges::any_of(all, [](const Input& input) { return input.kind != Kind::kTokens; });
  FSDP_CHECK(has_text || !config.bytes, ErrorCode::kInvalidArgument, "--bytes is for text, '",
             inputs.front().name, "' holds tokens: leave it out");
  if (!config.init.empty() && config.tokenizer.empty() && !config.bytes) {
    config.tokenizer = has_text ? found_tokenizer(config) : usable_tokenizer(config);
  }
  // What is not read as it lies is tokenized, if only to bytes.
  const bool is_made = std::ranges::any_of(all, [](const Input& input) {
    return input.kind == Kind::kRecords || std::ranges::any_of(input.paths, is_compressed);
  });
  if (config.tokenizer.empty() && !config.bytes && is_made) {
    config.tokenizer = kBytes;
  }
  if (config.tokenizer.empty()) {
    const std::int64_t vocab = origin_of(inputs.front()).vocab;
    if (vocab > 0 && !is_vocab_given) {
      set_vocab(config, vocab);
    }
  } else {
    need_path("--tokenizer", config.tokenizer == kBytes ? "." : config.tokenizer, Wanted::kModel);
  }
  as_bad_input([&] {
    const std::string path = config.tokenizer.empty() ? kBytes : config.tokenizer;
    const auto tokenizer = tokens::load(path);
    const std::int64_t vocab = tokenizer->vocab_size();
    if (!config.tokenizer.empty()) {
      if (!is_vocab_given) {
        set_vocab(config, vocab);
      }
      const std::int64_t held = models::sizes(config.model).vocab;
      FSDP_CHECK(held >= vocab, ErrorCode::kInvalidArgument, "a vocabulary of ", held,
                 config.init.empty() ? " (--vocab)" : " (that of --init)", " does not hold the ",
                 vocab, " ids of ", tokenizer->name());
      for (const Input& input : all) {
        check_origin(config, input, *tokenizer);
      }
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      config.data.push_back(prepared(config, inputs[i], path));
      config.data.back().weight = flags.weights.empty() ? 1 : flags.weights[i];
    }
    for (const Input& input : validation) {
      config.validation.push_back(prepared(config, input, path));
    }
  });
}

void check_prompt(const train::TrainConfig& config) {
  const bool has_tokenizer = !config.tokenizer.empty();
  const bool is_text = std::ranges::all_of(config.data, [](const train::DataSource& source) {
    return source.is_samples || data::Corpus::open(source.paths).is_text();
  });
  FSDP_CHECK(has_tokenizer || is_text, ErrorCode::kInvalidArgument,
             "--prompt is text, but the tokens of '", config.data.front().name,
             "' have no tokenizer: --tokenizer PATH names it");
  const auto tokenizer = has_tokenizer ? tokens::load(config.tokenizer) : tokens::bytes();
  const auto length = std::ssize(tokenizer->encode(config.prompt));
  const std::int64_t context = models::sizes(config.model).context;
  FSDP_CHECK(length <= context, ErrorCode::kInvalidArgument, "--prompt has ", length,
             " tokens, the model sees ", context, " at once: shorten it");
}

}  // namespace fsdp::apps
