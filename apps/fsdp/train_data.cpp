// SPDX-License-Identifier: Apache-2.0
#include "train_data.hpp"

#include <filesystem>

#include "bad_input.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/corpus.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/format/token_file.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "token_progress.hpp"

namespace fsdp::apps {
namespace {

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
      {.progress = [&](const data::TokenizeProgress& now) { progress.show(now); }});
}

}  // namespace

void use_tokenizer(train::TrainConfig& config, bool is_vocab_given) {
  if (config.tokenizer.empty()) {
    const std::int64_t vocab = origin_of(config.data).vocab;
    if (vocab > 0 && !is_vocab_given) {
      set_vocab(config, vocab);
    }
    return;
  }
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
    const bool is_text = data::Corpus::open(config.data).is_text();
    if (!is_text) {
      check_origin(config, *tokenizer);
    } else if (!tokens::files_of(config.tokenizer).empty()) {
      config.data = tokenized(config);
    }
  });
}

}  // namespace fsdp::apps
