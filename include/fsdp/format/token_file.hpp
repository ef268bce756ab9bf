// SPDX-License-Identifier: Apache-2.0
/// Token files with the ending `.bin`: plain little-endian uint16 as nanoGPT writes them, and
/// llm.c's, which begin with 256 int32: magic, version, number of tokens. Magic 20240520, version 1
/// is uint16; magic 20240801, version 7 is uint32. Recognised by the magic number.
///
/// What this library writes is llm.c's, with more in the part of the header that llm.c leaves zero:
///
///     byte    0  int32   magic, version, tokens
///     byte   12  int32   ids are below this; 0: not known
///     byte   16  uint64  fingerprint of the tokenizer
///     byte   24  char[]  name of the tokenizer, ends with a zero byte before byte 280
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fsdp::format {

/// The layouts that are read; kLlmC is that of llm.c.
enum class TokenFileKind {
  kPlain,  ///< uint16 tokens from the first byte on
  kLlmC,   ///< 1,024 bytes of header, then tokens
};

/// Where the tokens of a file come from.
struct TokenOrigin {
  std::int64_t vocab = 0;  ///< all ids are below this; 0: the file does not say
  std::uint64_t fingerprint = 0;
  std::string tokenizer = {};  ///< a name for people

  bool operator==(const TokenOrigin&) const = default;
};

/// Where the tokens of a file lie.
struct TokenFileInfo {
  TokenFileKind kind = TokenFileKind::kPlain;
  std::int64_t data_offset = 0;  ///< position of the first token
  std::int64_t tokens = 0;
  std::int64_t token_bytes = 2;  ///< 2 or 4
  TokenOrigin origin = {};
};

/// Looks at the size and the first bytes of a token file.
/// @throws Error kNotFound or kIo when it cannot be read; kCorrupt for a number of bytes that is no
/// number of tokens, for a count in llm.c's header that the file does not hold; kUnsupported for
/// another version of it
TokenFileInfo inspect_token_file(const std::string& path);

/// Writes a token file of llm.c's kind, of uint16 where the vocabulary allows it. Until finish()
/// the tokens lie in a file of another name, which the destructor removes.
///
/// *Example*:
///
///     TokenFileWriter writer("train.bin", {.vocab = 50257});
///     writer.append(ids);
///     writer.finish();
class TokenFileWriter {
 public:
  /// @throws Error kIo; kInvalidArgument for a vocabulary that is not 1 to 2^31 - 1
  TokenFileWriter(const std::string& path, TokenOrigin origin);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t token_bytes() const;

  /// @throws Error kInvalidArgument for an id outside of the vocabulary; kUnsupported beyond the
  /// 2^31 - 1 tokens that the header can count; kIo
  void append(std::span<const std::int64_t> ids);

  /// Completes the header, brings all of it to the disk and gives the file its name, also when one
  /// of that name exists. @throws Error kIo
  void finish();

 private:
  struct File;
  void write(std::string_view bytes);

  std::string path_;
  TokenOrigin origin_;
  std::int64_t tokens_ = 0;
  std::string buffer_;
  std::unique_ptr<File> file_;
};

}  // namespace fsdp::format
