// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace fsdp::apps {

/// Makes every option of `app` and of its commands take what people mean or nothing: whole numbers
/// are decimal, numbers are finite, and a text has characters, except for `may_be_empty`. The
/// parser alone reads 010 as eight, -1 as the largest seed, and "" as an option that was not given.
void make_strict(CLI::App& app, const std::vector<std::string>& may_be_empty);

/// Numbers that are not negative, or positive. (CLI11's own say "not in range 0 to" a number of 309
/// digits.)
CLI::Validator at_least_zero();
CLI::Validator above_zero();

/// What was wrong with the command line, in one line: which word, and what was probably meant.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

/// "'--stpes' is no option of fsdp train; did you mean --steps?"
std::string unknown_option(const CLI::App& command, const std::string& word);

}  // namespace fsdp::apps
