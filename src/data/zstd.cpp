// SPDX-License-Identifier: Apache-2.0
#include <zstd.h>

#include <memory>

#include "data/content.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {
namespace {

struct Free {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

}  // namespace

std::string from_zstd(const std::string& path, std::string_view stored) {
  const std::unique_ptr<ZSTD_DStream, Free> stream(ZSTD_createDStream());
  ZSTD_inBuffer in{stored.data(), stored.size(), 0};
  std::string text, piece(ZSTD_DStreamOutSize(), '\0');
  std::size_t state = 1;  // bytes that it waits for; 0: a frame has ended
  bool is_full = true;
  while (in.pos < in.size || (state != 0 && is_full)) {
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    state = ZSTD_decompressStream(stream.get(), &out, &in);
    FSDP_CHECK(ZSTD_isError(state) == 0, ErrorCode::kCorrupt, "'", path,
               "' cannot be decompressed: ", ZSTD_getErrorName(state));
    text.append(piece, 0, out.pos);
    is_full = out.pos == out.size;
  }
  FSDP_CHECK(state == 0, ErrorCode::kCorrupt, "'", path,
             "' cannot be decompressed: it ends before its frame does");
  return text;
}

}  // namespace fsdp::data::detail
