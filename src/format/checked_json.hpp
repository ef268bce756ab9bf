// SPDX-License-Identifier: Apache-2.0
/// JSON from outside: what a parser accepts without a word and a format must not.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::format::detail {

/// Parses `text`, which begins at byte `position` of the file `path`, as one object.
/// @throws Error kCorrupt naming the byte where the text is no JSON, a name that one object has
/// twice (nlohmann keeps one of them), nesting deeper than any format here has (printing such a
/// value would end the stack), and JSON that is no object
nlohmann::ordered_json parse_object(const std::string& path, std::string_view text,
                                    std::int64_t position);

/// The value as an integer of 0 to 2^63 - 1. @throws Error kCorrupt, calling it `what`
std::int64_t as_size(const nlohmann::ordered_json& value, const std::string& path,
                     const std::string& what);

}  // namespace fsdp::format::detail
