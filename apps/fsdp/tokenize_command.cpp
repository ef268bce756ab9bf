// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "bad_input.hpp"
#include "commands.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/data/tokenize.hpp"
#include "fsdp/tokens/tokenizer.hpp"
#include "token_progress.hpp"

namespace fsdp::apps {
namespace {

namespace fs = std::filesystem;

struct TokenizeFlags {
  std::string tokenizer;
  std::string out;
  std::vector<std::string> inputs;
  bool force = false;
  data::TokenizeOptions options;
};

/// The name of the only input with another ending, in the current directory.
std::string default_out(const std::vector<std::string>& inputs) {
  FSDP_CHECK(inputs.size() == 1, ErrorCode::kInvalidArgument, "--out FILE.bin is needed for ",
             inputs.size(), " inputs");
  const fs::path path = fs::absolute(inputs.front()).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).stem().string() + ".bin";
}

void check_out(const TokenizeFlags& flags) {
  std::error_code ignored;
  FSDP_CHECK(flags.out.ends_with(".bin"), ErrorCode::kInvalidArgument, "--out '", flags.out,
             "' does not end in .bin, by which fsdp train knows token files");
  const fs::path parent = fs::absolute(flags.out).parent_path();
  FSDP_CHECK(fs::is_directory(parent, ignored), ErrorCode::kInvalidArgument, "--out '", flags.out,
             "' cannot be written: there is no directory '", parent.string(), "'");
  FSDP_CHECK(flags.force || !fs::exists(flags.out, ignored), ErrorCode::kInvalidArgument, "'",
             flags.out, "' exists; --force overwrites it, --out names another");
}

int tokenize(TokenizeFlags flags) {
  std::shared_ptr<const tokens::Tokenizer> tokenizer;
  data::TokenizeResult result;
  const auto begin = std::chrono::steady_clock::now();
  as_bad_input([&] {
    if (flags.out.empty()) {
      flags.out = default_out(flags.inputs);
    }
    check_out(flags);
    for (const std::string& input : flags.inputs) {
      need_path("INPUT", input, Wanted::kData);
    }
    if (flags.tokenizer != "bytes") {
      need_path("--tokenizer", flags.tokenizer, Wanted::kModel);
    }
    tokenizer = tokens::load(flags.tokenizer);
    TokenProgress progress("tokenizing");
    flags.options.progress = [&](const data::TokenizeProgress& now) { progress.show(now); };
    result = data::tokenize(*tokenizer, flags.inputs, flags.out, flags.options);
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto bytes = static_cast<double>(result.bytes);
  std::printf(
      "%s: %lld tokens of uint%lld from %.1f MB in %lld %s, %.2f bytes per token, %.1f MB/s\n",
      flags.out.c_str(), static_cast<long long>(result.tokens),
      static_cast<long long>(8 * result.token_bytes), bytes / 1e6,
      static_cast<long long>(result.files), result.files == 1 ? "file" : "files",
      bytes / static_cast<double>(std::max<std::int64_t>(result.tokens, 1)), bytes / 1e6 / seconds);
  std::printf("%s: %lld ids. To train on it:\n  fsdp train --data %s --tokenizer %s\n",
              tokenizer->name().c_str(), static_cast<long long>(tokenizer->vocab_size()),
              flags.out.c_str(), flags.tokenizer.c_str());
  return kSuccess;
}

}  // namespace

Action add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Turn text files into a token file for fsdp train");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "A model's directory, tokenizer.json, vocab.json, a tiktoken file, or "
                   "\"bytes\"")
      ->required();
  command->add_option("--out", flags->out,
                      "The token file, ends in .bin (default: the input's name, here)");
  command->add_option("INPUT", flags->inputs, "Text files, and directories of them")->required();
  command->add_flag("--eos", flags->options.end_files, "End each file with the end-of-text token");
  command->add_flag("--special", flags->options.encode.special_tokens,
                    "Read \"<|endoftext|>\" and its like in the text as these tokens; else they "
                    "are text like any other");
  command->add_flag("--drop-unknown", flags->options.encode.drop_unknown,
                    "Leave out bytes that the vocabulary has no token for; else they are an error");
  command->add_flag("--any-bytes", flags->options.any_bytes,
                    "Take inputs that are no text in UTF-8: compressed files, tables, JSON and the "
                    "like, byte for byte");
  command->add_flag("--force", flags->force, "Overwrite the token file");
  command->footer(
      "Examples:\n"
      "  fsdp tokenize --tokenizer models/gpt2 data/kjv.txt           writes kjv.bin\n"
      "  fsdp tokenize --tokenizer models/llama3/tokenizer.json --out notes.bin --eos notes/\n"
      "  fsdp train --data kjv.bin --tokenizer models/gpt2\n"
      "  fsdp train --data data/kjv.txt --tokenizer models/gpt2       both steps in one\n"
      "\n"
      "Tokens are uint16 for up to 65,536 ids, else uint32, behind the header of llm.c.\n"
      "Exit codes: 0 success, 1 failure, 2 bad input.");
  return [flags] { return tokenize(*flags); };
}

}  // namespace fsdp::apps
