// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/near_names.hpp"

namespace fsdp::apps {
namespace {

/// Reads all of `text` as a number; nothing for more or less than one.
template <class T>
std::string read(std::string& text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+') {
    text.erase(0, 1);  // from_chars() knows no plus
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = end == text.data() + text.size() && !text.empty();
  if (is_whole && error == std::errc::result_out_of_range) {
    return "'" + text + "' is beyond what a number can be here";
  }
  return is_whole && error == std::errc() ? "" : "'" + text + "' is no ";
}

/// Validators of the parser may change the text: what comes out has no leading zero, which the
/// parser would take for octal.
template <class T>
std::string make_whole(std::string& text) {
  T value{};
  std::string problem = read(text, value);
  if (problem.empty()) {
    text = std::to_string(value);
    return "";
  }
  return problem.ends_with("is no ")
             ? problem + (std::is_signed_v<T> ? "whole number" : "whole number from 0 on") +
                   ": digits alone, without a unit"
             : problem;
}

std::string check_real(std::string& text) {
  double value = 0;
  std::string problem = read(text, value);
  if (problem.empty() && !std::isfinite(value)) {
    problem = "'" + text + "' is no ";
  }
  return problem.ends_with("is no ") ? problem + "finite number such as 0.1 or 3e-4, without a unit"
                                     : problem;
}

std::string check_text(std::string& text) {
  return text.empty() ? "is empty; leave the option out, or give it a value" : "";
}

void make_strict(CLI::Option& option, const std::vector<std::string>& may_be_empty) {
  const std::string type = option.get_type_name();
  const auto check = [&](std::string (*check_value)(std::string&)) {
    option.transform(CLI::Validator(check_value, ""));
  };
  if (type.starts_with("UINT")) {
    check(make_whole<std::uint64_t>);
  } else if (type.starts_with("INT")) {
    check(make_whole<std::int64_t>);
  } else if (type.starts_with("FLOAT")) {
    check(check_real);
  } else if (type.starts_with("TEXT") && std::find(may_be_empty.begin(), may_be_empty.end(),
                                                   option.get_name()) == may_be_empty.end()) {
    check(check_text);
  }
}

/// The command that was read last; the parser counts groups of options as commands without a name.
const CLI::App& deepest(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    if (!command->get_name().empty()) {
      return deepest(*command);
    }
  }
  return app;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : full_name(*app.get_parent()) + " " + app.get_name();
}

void add_names(const CLI::App& app, std::vector<std::string>& options,
               std::vector<std::string>& commands) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      options.push_back(name);
    }
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name().empty()) {
      add_names(*command, options, commands);
    } else {
      commands.push_back(command->get_name());
    }
  }
}

/// "lr" of "learning-rate".
std::string initials(const std::string& word) {
  std::string letters(1, word.front());
  for (std::size_t i = 1; i < word.size(); ++i) {
    if (word[i - 1] == '-') {
      letters += word[i];
    }
  }
  return letters;
}

/// The name that `word` was probably meant to be; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = word.size() / 3 + 1;  // a third may be wrong
  for (const std::string& name : names) {
    if (const std::size_t found = base::distance(word, name); found < best_distance) {
      best = name;
      best_distance = found;
    }
  }
  if (!best.empty()) {
    return best;
  }
  for (const std::string& name : names) {
    const bool begins_alike = std::min(word.size(), name.size()) >= 3 &&
                              (word.starts_with(name) || name.starts_with(word));
    if ((begins_alike && name.size() > best.size()) || name == initials(word)) {
      best = name;
    }
  }
  return best;
}

std::string suggestion(const std::string& dashes, const std::string& name) {
  return name.empty() ? "" : "; did you mean " + dashes + name + "?";
}

std::string unexpected(const CLI::App& command, const std::string& word) {
  if (word.size() > 1 && word.front() == '-') {
    return unknown_option(command, word);
  }
  std::vector<std::string> options, commands;
  add_names(command, options, commands);
  if (!commands.empty()) {
    return "'" + word + "' is not a command of " + full_name(command) +
           suggestion("", nearest(word, commands));
  }
  const bool has_data = std::find(options.begin(), options.end(), "data") != options.end();
  return "'" + word + "' was not expected; what " + full_name(command) + " takes has a name" +
         (has_data ? ", such as --data " + word : "");
}

/// The option that was given too often; nullptr for none.
const CLI::Option* repeated(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    // A flag may be said again.
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
        static_cast<int>(option->count()) > std::max(option->get_items_expected_max(), 1)) {
      return option;
    }
  }
  for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (const CLI::Option* option = repeated(*part)) {
      return option;
    }
  }
  return nullptr;
}

/// A number for which `is_good`, which is what it `must_be`.
template <class IsGood>
CLI::Validator number_that(IsGood is_good, const char* must_be) {
  return CLI::Validator(
      [is_good, must_be](std::string& text) {
        double value = 0;
        const bool is_number = read(text, value).empty();
        return !is_number || is_good(value) ? std::string() : "is " + text + ", must be " + must_be;
      },
      "");
}

}  // namespace

CLI::Validator at_least_zero() {
  return number_that([](double value) { return value >= 0; }, "0 or a positive number");
}

CLI::Validator above_zero() {
  return number_that([](double value) { return value > 0; }, "a positive number");
}

void make_strict(CLI::App& app, const std::vector<std::string>& may_be_empty) {
  for (CLI::Option* option : app.get_options()) {
    make_strict(*option, may_be_empty);
  }
  for (CLI::App* part : app.get_subcommands([](CLI::App*) { return true; })) {
    make_strict(*part, may_be_empty);
  }
}

std::string unknown_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> options, commands;
  add_names(command, options, commands);
  std::string name = word.substr(word.find_first_not_of('-'));
  name = name.substr(0, name.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  return "'" + word + "' is no option of " + full_name(command) +
         (name.empty() ? "" : suggestion("--", nearest(name, options)));
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = deepest(app);
  const std::string see = " (see " + full_name(command) + " --help)";
  if (const CLI::Option* option = repeated(command)) {
    return option->get_name() + " is given " + std::to_string(option->count()) +
           " times but takes one value: leave out all others" + see;
  }
  if (const auto left = app.remaining(); !left.empty()) {
    const bool is_early = &command != &app;
    return unexpected(app, left.front()) + (is_early ? "; options follow their command" : "") + see;
  }
  for (const CLI::App* inner = &command; inner != &app; inner = inner->get_parent()) {
    // What fsdp run has left over is the program that it starts.
    if (const auto left = inner->remaining(); !left.empty() && !inner->get_prefix_command()) {
      return unexpected(*inner, left.front()) + see;
    }
  }
  const std::string text = error.what();
  return text.substr(0, text.find('\n')) + see;
}

}  // namespace fsdp::apps
