// SPDX-License-Identifier: Apache-2.0
#include "train_data.hpp"

#include <filesystem>

#include "bad_input.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/format/token_file.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "places.hpp"
#include "token_progress.hpp"

namespace fsdp::apps {
namespace {

constexpr std::int64_t kByteVocabulary = 256;

/// Where the tokens of a token file come from; nothing known for anything else. What is wrong with
/// it the check of the whole configuration tells.
format::TokenOrigin origin_of(const std::string& data) {
  std::error_code ignored;
  if (std::filesystem::path(data).extension() == ".bin" &&
      std::filesystem::is_regular_file(data, ignored)) {
    try {
      return format::inspect_token_file(data).origin;
    } catch (const Error&) {
      return {};
    }
  }
  return {};
}

void check_origin(const train::TrainConfig& config, const tokens::Tokenizer& tokenizer) {
  const format::TokenOrigin origin = origin_of(config.data);
  FSDP_CHECK(origin.vocab == 0 || origin.fingerprint == tokenizer.fingerprint(),
             ErrorCode::kInvalidArgument, "'", config.data, "' was made with ", origin.tokenizer,
             " of ", origin.vocab, " ids, --tokenizer '", config.tokenizer, "' is ",
             tokenizer.name(), " of ", tokenizer.vocab_size(), ": another vocabulary");
}

void set_vocab(train::TrainConfig& config, std::int64_t vocab) {
  std::visit([&](auto& model) { model.vocab = vocab; }, config.model);
}

std::string tokenized(const train::TrainConfig& config) {
  TokenProgress progress("tokenizing '" + config.data + "'");
  return data::cached_tokens(
      config.data, config.tokenizer, data::default_token_cache(),
      {.any_bytes = config.any_bytes,
       .progress = [&](const data::TokenizeProgress& now) { progress.show(now); }});
}

/// Text or tokens; all that is wrong with what the user named is bad input, also its rights.
bool is_text(const std::string& data) {
  try {
    return data::Corpus::open(data).is_text();
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, error.text());
  }
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

}  // namespace

void use_tokenizer(train::TrainConfig& config, bool is_vocab_given) {
  const bool has_text = is_text(config.data);
  FSDP_CHECK(has_text || !config.bytes, ErrorCode::kInvalidArgument, "--bytes is for text, '",
             config.data, "' holds tokens: leave it out");
  if (!config.init.empty() && config.tokenizer.empty() && !config.bytes) {
    config.tokenizer = has_text ? found_tokenizer(config) : usable_tokenizer(config);
  }
  if (config.tokenizer.empty()) {
    const std::int64_t vocab = origin_of(config.data).vocab;
    if (vocab > 0 && !is_vocab_given) {
      set_vocab(config, vocab);
    }
    return;
  }
  need_path("--tokenizer", config.tokenizer == "bytes" ? "." : config.tokenizer, Wanted::kModel);
  as_bad_input([&] {
    const auto tokenizer = tokens::load(config.tokenizer);
    const std::int64_t vocab = tokenizer->vocab_size();
    if (!is_vocab_given) {
      set_vocab(config, vocab);
    }
    const std::int64_t held = models::sizes(config.model).vocab;
    FSDP_CHECK(held >= vocab, ErrorCode::kInvalidArgument, "a vocabulary of ", held,
               config.init.empty() ? " (--vocab)" : " (that of --init)", " does not hold the ",
               vocab, " ids of ", tokenizer->name());
    if (!has_text) {
      check_origin(config, *tokenizer);
    } else if (!tokens::files_of(config.tokenizer).empty()) {
      config.data = tokenized(config);
    }
  });
}

void check_prompt(const train::TrainConfig& config) {
  const bool has_tokenizer = !config.tokenizer.empty();
  FSDP_CHECK(has_tokenizer || is_text(config.data), ErrorCode::kInvalidArgument,
             "--prompt is text, but the tokens of '", config.data,
             "' have no tokenizer: --tokenizer PATH names it");
  const auto tokenizer = has_tokenizer ? tokens::load(config.tokenizer) : tokens::bytes();
  const auto length = std::ssize(tokenizer->encode(config.prompt));
  const std::int64_t context = models::sizes(config.model).context;
  FSDP_CHECK(length <= context, ErrorCode::kInvalidArgument, "--prompt has ", length,
             " tokens, the model sees ", context, " at once: shorten it");
}

}  // namespace fsdp::apps
