// SPDX-License-Identifier: Apache-2.0
/// Text files into token files: once by hand (`fsdp tokenize`), or at the start of a training,
/// which keeps what it made for the next one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/tokens/tokenizer.hpp"

namespace fsdp::data {

/// How far a tokenization is.
struct TokenizeProgress {
  std::int64_t bytes_done = 0;
  std::int64_t bytes = 0;
  std::int64_t tokens = 0;
};

/// How text becomes tokens, and who hears how far it is.
struct TokenizeOptions {
  tokens::EncodeOptions encode = {};
  bool end_files = false;  ///< put eos after each file
  bool any_bytes = false;  ///< take inputs that are no text, too, see check_content()
  /// Called at most a few dozen times per second, from the thread that tokenizes.
  std::function<void(const TokenizeProgress&)> progress = {};
};

/// What came out.
struct TokenizeResult {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  std::int64_t tokens = 0;
  std::int64_t token_bytes = 2;  ///< of the file: 2 or 4 per token
};

/// Writes the tokens of `inputs`, one after the other, to the token file `out`. An input is a text
/// file or a directory of them (walked down in the order of paths, hidden names left out); each
/// file is encoded as a whole, decompressed where its name ends in `.gz` or `.zst`. The file
/// appears complete, or not at all. Memory does not grow with the inputs.
/// @throws Error kNotFound or kIo for an input or for `out`; kInvalidArgument for inputs that hold
/// no file, a token file or no text, and for `end_files` without an eos; whatever encode() throws
TokenizeResult tokenize(const tokens::Tokenizer& tokenizer, const std::vector<std::string>& inputs,
                        const std::string& out, const TokenizeOptions& options = {});

/// The token file for the texts `inputs` and the tokenizer at `tokenizer_path`, from a cache in
/// `directory`: made when it is not there, when a file of either has another size or time, or when
/// the option is another. Processes that ask for the same at once wait for the first.
/// `directory` is made for this user alone, and must be so: whoever can write into it chooses what
/// is trained on. Links in place of it or of a token file are not followed.
/// @throws Error as tokenize(), and kIo when `directory` cannot be written, or is another user's or
/// open to others
std::string cached_tokens(const std::vector<std::string>& inputs, const std::string& tokenizer_path,
                          const std::string& directory, const TokenizeOptions& options = {});

/// Where cached_tokens() keeps its files for this user: `$XDG_CACHE_HOME/fsdp/tokens`, else
/// `~/.cache/fsdp/tokens`, else in the directory for temporary files.
std::string default_token_cache();

}  // namespace fsdp::data
