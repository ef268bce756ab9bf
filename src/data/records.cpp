// SPDX-License-Identifier: Apache-2.0
#include "data/records.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_watcher.hpp"
#include "base/text.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

using nlohmann::ordered_json;

namespace {

/// Deeper than the tools of any conversation.
constexpr std::size_t kMostNesting = 64;

ordered_json parse(std::string_view line, const std::string& where) {
  base::JsonWatcher<ordered_json> watcher(where, "a record", kMostNesting);
  ordered_json record;
  try {
    record = ordered_json::parse(line.begin(), line.end(),
                                 [&](int, ordered_json::parse_event_t event, ordered_json& value) {
                                   return watcher(event, value);
                                 });
  } catch (const ordered_json::parse_error& error) {
    fail(ErrorCode::kInvalidArgument, where, " is no JSON: byte ", error.byte,
         " of it cannot be read");
  } catch (const ordered_json::out_of_range&) {
    fail(ErrorCode::kInvalidArgument, where, ": a number is beyond any double");
  }
  FSDP_CHECK(record.is_object(), ErrorCode::kInvalidArgument, where,
             " is JSON but no object: a record is one object in one line");
  return record;
}

std::string names_of(const ordered_json& record) {
  std::string names;
  for (const auto& [name, value] : record.items()) {
    base::append_to_list(names, name);
  }
  return names.empty() ? "nothing" : names;
}

/// Fields of other programs, and what makes messages of them.
std::string way_for(const ordered_json& record) {
  constexpr const char* kPython =
      "; python3 -c \"import json, sys; [print(json.dumps({'messages': ";
  constexpr const char* kEnd = "})) for r in map(json.loads, sys.stdin)]\" < IN > OUT.jsonl";
  if (record.contains("conversations")) {
    return std::string("; these are ShareGPT's, messages of them makes") + kPython +
           "[{'role': {'human': 'user', 'gpt': 'assistant'}.get(m['from'], m['from']), 'content': "
           "m['value']} for m in r['conversations']]" +
           kEnd;
  }
  if (record.contains("instruction") && record.contains("output")) {
    return std::string("; these are Alpaca's, messages of them makes") + kPython +
           "[{'role': 'user', 'content': (r['instruction'] + '\\n\\n' + r.get('input', "
           "'')).strip()}, "
           "{'role': 'assistant', 'content': r['output']}]" +
           kEnd;
  }
  return "";
}

void check_messages(const ordered_json& messages, const char* name, const std::string& where) {
  FSDP_CHECK(messages.is_array() && !messages.empty(), ErrorCode::kInvalidArgument, where, ": ",
             name, " is no list of messages");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    FSDP_CHECK(message.is_object() && message.contains("role") && message["role"].is_string(),
               ErrorCode::kInvalidArgument, where, ": ", name, "[", i,
               "] is no message: it has no role");
  }
}

bool is_answer(const ordered_json& message) { return message["role"] == "assistant"; }

ordered_json first_of(const ordered_json& messages, std::size_t count) {
  return {messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

std::vector<std::int64_t> SampleMaker::encode(const std::string& text, bool is_whole) const {
  std::vector<std::int64_t> ids;
  if (is_whole && tokenizer_.begins_texts() && tokenizer_.bos()) {
    ids.push_back(*tokenizer_.bos());
  }
  tokenizer_.encode(text, {.special_tokens = true},
                    [&](std::span<const std::int64_t> part, std::size_t) {
                      ids.insert(ids.end(), part.begin(), part.end());
                    });
  return ids;
}

Sample SampleMaker::of_text(const std::string& text) const {
  Sample sample{.tokens = encode(text, true), .learned = {}, .is_text = true};
  const auto eos = tokenizer_.eos();
  if (eos && (sample.tokens.empty() || sample.tokens.back() != *eos)) {
    sample.tokens.push_back(*eos);
  }
  sample.learned.assign(sample.tokens.size(), true);
  return sample;
}

Sample SampleMaker::of_pair(const std::string& prompt, const std::string& completion) {
  const auto before = encode(prompt, true);
  Sample sample{.tokens = encode(prompt + completion, true), .learned = {}};
  const auto eos = tokenizer_.eos();
  if (eos && (sample.tokens.empty() || sample.tokens.back() != *eos)) {
    sample.tokens.push_back(*eos);
  }
  sample.learned.assign(sample.tokens.size(), true);
  std::fill_n(sample.learned.begin(), std::min(before.size(), sample.tokens.size()), false);
  ++counts_.answers;
  const bool is_prefix = before.size() <= sample.tokens.size() &&
                         std::equal(before.begin(), before.end(), sample.tokens.begin());
  counts_.shifted += is_prefix ? 0 : 1;
  return sample;
}

Sample SampleMaker::of_prefix(const std::string& before, const std::string& all) {
  const auto known = encode(before, false);
  Sample sample{.tokens = encode(all, false), .learned = {}};
  sample.learned.assign(sample.tokens.size(), true);
  std::fill_n(sample.learned.begin(), std::min(known.size(), sample.tokens.size()), false);
  ++counts_.answers;
  const bool is_prefix = known.size() <= sample.tokens.size() &&
                         std::equal(known.begin(), known.end(), sample.tokens.begin());
  counts_.shifted += is_prefix ? 0 : 1;
  return sample;
}

const ChatTemplate& SampleMaker::chat() {
  if (!chat_) {
    FSDP_CHECK(!model_.empty(), ErrorCode::kInvalidArgument,
               "messages need the chat template of a model, and tokens are bytes: --tokenizer DIR "
               "or --init DIR names a model with one");
    chat_.emplace(ChatTemplate::load(model_));
  }
  return *chat_;
}

std::string SampleMaker::rendered(const ordered_json& messages, bool opens_answer,
                                  const ordered_json& record, const std::string& where) {
  const ChatTemplate& known = chat();
  const bool has_tools = record.contains("tools") && !record["tools"].is_null();
  try {
    return known.render(messages.dump(), opens_answer, has_tools ? record["tools"].dump() : "");
  } catch (const Error& error) {
    fail(error.code(), where, ": ", error.text());
  }
}

std::vector<Sample> SampleMaker::of_messages(const ordered_json& record, const std::string& where) {
  const ordered_json& messages = record["messages"];
  check_messages(messages, "messages", where);
  const std::string all = rendered(messages, false, record, where);
  struct Answer {
    std::string before, after;
  };
  std::vector<Answer> answers;
  bool keeps_prefixes = true;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!is_answer(messages[i])) {
      continue;
    }
    FSDP_CHECK(i > 0, ErrorCode::kInvalidArgument, where,
               ": the first message is an answer: there is nothing that it answers");
    Answer answer{.before = rendered(first_of(messages, i), true, record, where),
                  .after = rendered(first_of(messages, i + 1), false, record, where)};
    FSDP_CHECK(answer.after.starts_with(answer.before), ErrorCode::kInvalidArgument, where,
               ": with message ", i,
               " the chat template changes what it makes of the messages before it, so nobody can "
               "tell where the answer begins; '",
               chat().path(), "'");
    keeps_prefixes = keeps_prefixes && all.starts_with(answer.after);
    answers.push_back(std::move(answer));
  }
  FSDP_CHECK(!answers.empty(), ErrorCode::kInvalidArgument, where,
             ": no message has the role assistant, so there is nothing to learn");
  std::vector<Sample> samples;
  if (!keeps_prefixes) {
    ++counts_.split;
    for (const Answer& answer : answers) {
      samples.push_back(of_prefix(answer.before, answer.after));
    }
    return samples;
  }
  Sample sample{.tokens = encode(all, false), .learned = {}};
  sample.learned.assign(sample.tokens.size(), false);
  for (const Answer& answer : answers) {
    const Sample part = of_prefix(answer.before, answer.after);
    for (std::size_t i = 0; i < std::min(part.tokens.size(), sample.tokens.size()); ++i) {
      sample.learned[i] = sample.learned[i] || part.learned[i];
    }
  }
  samples.push_back(std::move(sample));
  return samples;
}

Sample SampleMaker::of_answer_lists(const ordered_json& record, const std::string& where) {
  const ordered_json& prompt = record["prompt"];
  check_messages(prompt, "prompt", where);
  check_messages(record["completion"], "completion", where);
  ordered_json all = prompt;
  all.insert(all.end(), record["completion"].begin(), record["completion"].end());
  const std::string before = rendered(prompt, true, record, where);
  const std::string text = rendered(all, false, record, where);
  FSDP_CHECK(
      text.starts_with(before), ErrorCode::kInvalidArgument, where,
      ": with the completion the chat template changes what it makes of the prompt, so nobody "
      "can tell where the answer begins; '",
      chat().path(), "'");
  return of_prefix(before, text);
}

std::vector<Sample> SampleMaker::of_line(std::string_view line, const std::string& where) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
    return {};
  }
  const ordered_json record = parse(line, where);
  const auto has = [&](const char* name, auto&& is_right) {
    return record.contains(name) && is_right(record[name]);
  };
  const auto is_text = [](const ordered_json& value) { return value.is_string(); };
  const auto is_list = [](const ordered_json& value) { return value.is_array(); };
  const bool has_pair = record.contains("prompt") && record.contains("completion");
  const int kinds = (record.contains("messages") ? 1 : 0) + (record.contains("text") ? 1 : 0) +
                    (has_pair ? 1 : 0);
  FSDP_CHECK(kinds == 1, ErrorCode::kInvalidArgument, where, " has ", names_of(record),
             kinds == 0 ? ": a record has text, prompt and completion, or messages"
                        : ": text, prompt and completion, and messages are three ways to say it; "
                          "one of them is needed",
             kinds == 0 ? way_for(record) : "");
  ++counts_.records;
  std::vector<Sample> samples;
  if (has("text", is_text)) {
    samples.push_back(of_text(record["text"]));
  } else if (has("messages", is_list)) {
    samples = of_messages(record, where);
  } else if (has_pair && has("prompt", is_text) && has("completion", is_text)) {
    samples.push_back(of_pair(record["prompt"], record["completion"]));
  } else if (has_pair && has("prompt", is_list) && has("completion", is_list)) {
    samples.push_back(of_answer_lists(record, where));
  } else {
    fail(
        ErrorCode::kInvalidArgument, where, " has ", names_of(record),
        ": text is to be a string, prompt and completion two strings or two lists of messages, and "
        "messages a list");
  }
  for (const Sample& sample : samples) {
    ++counts_.documents;
    counts_.tokens += std::ssize(sample.tokens);
    counts_.learned += std::ranges::count(sample.learned, true);
  }
  return samples;
}

}  // namespace fsdp::data::detail
