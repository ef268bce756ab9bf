// SPDX-License-Identifier: Apache-2.0
#include "tokens/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "fsdp/base/error.hpp"

namespace fsdp::tokens::detail {
namespace {

struct Free {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }
};

bool is_ascii(char character) { return static_cast<unsigned char>(character) < 0x80; }

/// The run of `text` from `begin` on that is composed by itself: the character before the first
/// that is not ASCII, which a mark may join, up to the next that is ASCII, which joins nothing
/// before it. Both ends of the text when all of it is ASCII.
std::pair<std::size_t, std::size_t> next_run(std::string_view text, std::size_t begin) {
  const auto first = static_cast<std::size_t>(
      std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_ascii) -
      text.begin());
  const auto last = static_cast<std::size_t>(
      std::find_if(text.begin() + static_cast<std::ptrdiff_t>(first), text.end(), is_ascii) -
      text.begin());
  return {first > begin ? first - 1 : first, last};
}

std::string compose_run(std::string_view run) {
  utf8proc_uint8_t* made = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                   static_cast<utf8proc_ssize_t>(run.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(made);
  FSDP_CHECK(size >= 0, ErrorCode::kInvalidArgument, "a text of ", run.size(),
             " bytes cannot be normalized: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)};
}

std::optional<std::string> replaced(std::string_view text, const std::string& from,
                                    const std::string& to) {
  std::size_t found = text.find(from);
  if (from.empty() || found == std::string_view::npos) {
    return std::nullopt;
  }
  std::string result;
  result.reserve(text.size() + text.size() / 4 * to.size());
  std::size_t at = 0;
  for (; found != std::string_view::npos; found = text.find(from, at)) {
    result.append(text, at, found - at);
    result += to;
    at = found + from.size();
  }
  return result.append(text, at);
}

std::optional<std::string> step(const NormalStep& step, std::string_view text) {
  switch (step.kind) {
    case NormalStep::Kind::kCompose: return composed(text);
    case NormalStep::Kind::kReplace: return replaced(text, step.from, step.to);
    case NormalStep::Kind::kPrepend: break;
  }
  return text.empty() ? std::nullopt : std::optional(step.to + std::string(text));
}

}  // namespace

std::optional<std::string> composed(std::string_view text) {
  std::optional<std::string> result;
  std::size_t done = 0;  // of `text`, in `result`
  for (std::size_t at = 0; at < text.size();) {
    const auto [begin, end] = next_run(text, at);
    const std::string_view run = text.substr(begin, end - begin);
    if (std::string made = compose_run(run); made != run) {
      if (!result) {
        result.emplace().reserve(text.size());
      }
      result->append(text, done, begin - done);
      *result += made;
      done = end;
    }
    at = end;
  }
  if (result) {
    result->append(text, done);
  }
  return result;
}

std::optional<std::string> Normalizer::changed(std::string_view text) const {
  std::optional<std::string> result;
  for (const NormalStep& each : steps_) {
    if (auto next = step(each, result ? std::string_view(*result) : text)) {
      result = std::move(next);
    }
  }
  return result;
}

}  // namespace fsdp::tokens::detail
