// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "data/content.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr int kGzipWindow = 15 + 16;  // the largest window, behind gzip's header

/// Freed whatever happens.
class Inflater {
 public:
  Inflater() { FSDP_ASSERT(::inflateInit2(&stream_, kGzipWindow) == Z_OK, "zlib does not start"); }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream& stream() { return stream_; }

 private:
  z_stream stream_{};
};

}  // namespace

std::string from_gzip(const std::string& path, std::string_view stored) {
  std::string text;
  Inflater inflater;
  z_stream& stream = inflater.stream();
  const char* const end = stored.data() + stored.size();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
  for (int state = Z_OK;
       state != Z_STREAM_END || reinterpret_cast<const char*>(stream.next_in) < end;) {
    if (state == Z_STREAM_END) {
      ::inflateReset(&stream);
    }
    const auto left = static_cast<std::size_t>(end - reinterpret_cast<const char*>(stream.next_in));
    stream.avail_in =
        static_cast<uInt>(std::min<std::size_t>(left, std::numeric_limits<int>::max()));
    const std::size_t held = text.size();
    text.resize(held + kPiece);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + held);
    stream.avail_out = static_cast<uInt>(kPiece);
    state = ::inflate(&stream, Z_NO_FLUSH);
    text.resize(held + kPiece - stream.avail_out);
    const bool is_stuck = state == Z_BUF_ERROR || (left == 0 && text.size() == held);
    FSDP_CHECK((state == Z_OK || state == Z_STREAM_END) && !(is_stuck && state != Z_STREAM_END),
               ErrorCode::kCorrupt, "'", path, "' cannot be decompressed: ",
               is_stuck ? "it ends before its stream does"
                        : (stream.msg == nullptr ? "no gzip stream" : stream.msg));
  }
  return text;
}

}  // namespace fsdp::data::detail
