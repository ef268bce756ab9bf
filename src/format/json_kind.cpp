// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <vector>

#include "format/file_kind.hpp"

namespace fsdp::format::detail {
namespace {

using nlohmann::ordered_json;
constexpr std::string_view kSpace = " \t\r\n";

/// Fields by which people know a data set, and Python for the text of its record r.
struct Fields {
  std::string_view name;
  std::initializer_list<std::string_view> needed;
  std::string_view text;
};
const Fields kKnownFields[] = {
    {"ShareGPT's fields",
     {"conversations"},
     R"('\n\n'.join(m['from'] + ': ' + m['value'] for m in r['conversations']))"},
    {"chat messages",
     {"messages"},
     R"('\n\n'.join(m['role'] + ': ' + m['content'] for m in r['messages']))"},
    {"Alpaca's fields",
     {"instruction", "output"},
     R"('\n\n'.join(r[k] for k in ('instruction', 'input', 'output') if r.get(k)))"},
    {"prompts and completions", {"prompt", "completion"}, "r['prompt'] + r['completion']"},
    {"the field text", {"text"}, "r['text']"},
    {"the field content", {"content"}, "r['content']"},
    {"a notebook's cells",
     {"cells", "nbformat"},
     R"('\n\n'.join(''.join(c['source']) for c in r['cells']))"},
};
/// All strings of a record, however deep: what its fields are called may stand beyond the head.
constexpr std::string_view kAnyText =
    R"((lambda w: w(w, r))(lambda w, v: v if isinstance(v, str) else '\n'.join(filter(None, )"
    R"((w(w, x) for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) )"
    R"(else ()))))))";

enum class Shape { kLines, kArray, kObject };

std::string_view name_of(Shape shape) {
  return shape == Shape::kLines ? "JSON lines" : shape == Shape::kArray ? "a JSON array" : "JSON";
}

std::string_view records_of(Shape shape) {
  return shape == Shape::kLines   ? "map(json.loads, filter(str.strip, f))"
         : shape == Shape::kArray ? "json.load(f)"
                                  : "[json.load(f)]";
}

std::string_view without_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

/// The first object of `text`, which begins with its brace; empty when it does not end in there.
std::string_view object_at_begin(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (in_string) {
      i += character == '\\' ? 1 : 0;
      in_string = character != '"';
    } else if (character == '"') {
      in_string = true;
    } else if (character == '{' || character == '[') {
      ++depth;
    } else if ((character == '}' || character == ']') && --depth == 0) {
      return text.substr(0, i + 1);
    }
  }
  return {};
}

/// Whether `text`, which begins with a brace, goes on with a name and a colon.
bool has_member(std::string_view text) {
  text = without_space(text.substr(1));
  const auto end = text.starts_with('"') ? text.find('"', 1) : std::string_view::npos;
  return end != std::string_view::npos && without_space(text.substr(end + 1)).starts_with(':');
}

JsonKind describe(Shape shape, const std::vector<std::string>& names) {
  const auto has = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto* const known =
      std::find_if(std::begin(kKnownFields), std::end(kKnownFields), [&](const Fields& fields) {
        return std::all_of(fields.needed.begin(), fields.needed.end(), has);
      });
  const bool is_known = known != std::end(kKnownFields);
  return {.name = std::string(name_of(shape)) + (is_known ? " of " : "") +
                  std::string(is_known ? known->name : ""),
          .way =
              "python3 -c \"import json, sys; f = open(sys.argv[1], encoding='utf-8-sig'); "
              "[print(" +
              std::string(is_known ? known->text : kAnyText) + R"(, end='\n\n') for r in )" +
              std::string(records_of(shape)) + "]\" {in} > {out}"};
}

std::vector<std::string> names_in(std::string_view object) {
  std::vector<std::string> names;
  const auto json = ordered_json::parse(object, nullptr, /*allow_exceptions=*/false);
  for (const auto& member : json.items()) {
    names.push_back(member.key());
  }
  return names;
}

/// By what the text begins with, whatever its name.
std::optional<JsonKind> kind_by_text(std::string_view text) {
  const bool is_array = text.starts_with('[');
  const std::string_view first = is_array ? without_space(text.substr(1)) : text;
  if (!first.starts_with('{') || !has_member(first)) {
    return std::nullopt;
  }
  const std::string_view object = object_at_begin(first);
  if (object.empty()) {  // longer than the head
    const bool is_one_line = first.find('\n') == std::string_view::npos;
    return describe(is_array ? Shape::kArray : is_one_line ? Shape::kLines : Shape::kObject, {});
  }
  if (!ordered_json::accept(object)) {
    return std::nullopt;
  }
  const std::string_view rest = without_space(first.substr(object.size()));
  if (is_array) {
    return describe(Shape::kArray, names_in(object));
  }
  const bool is_one_line = object.find('\n') == std::string_view::npos;
  if (!rest.empty() && !rest.starts_with('{')) {
    return std::nullopt;  // a text that quotes an object
  }
  return describe(!rest.empty() || is_one_line ? Shape::kLines : Shape::kObject, names_in(object));
}

}  // namespace

std::optional<JsonKind> kind_of_json(std::string_view path, std::string_view head) {
  head = head.substr(head.starts_with("\xef\xbb\xbf") ? 3 : 0);
  const std::string_view text = without_space(head);
  if (auto kind = kind_by_text(text)) {
    return kind;
  }
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) {
    return describe(Shape::kLines, {});
  }
  if (path.ends_with(".json") || path.ends_with(".ipynb")) {
    return describe(text.starts_with('[') ? Shape::kArray : Shape::kObject, {});
  }
  return std::nullopt;
}

}  // namespace fsdp::format::detail
