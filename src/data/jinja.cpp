// SPDX-License-Identifier: Apache-2.0
#include "data/jinja.hpp"

#include <cstddef>  // what follows does not include all that it uses

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

namespace fsdp::data::detail {

struct Jinja::Program {
  explicit Program(const std::string& text) : source(text) {
    jinja::lexer lexer;
    parsed = jinja::parse_from_tokens(lexer.tokenize(source));
  }
  std::string source;
  jinja::program parsed;
};

std::string Jinja::why_not() { return ""; }

Jinja::Jinja(const std::string& source) : program_(std::make_unique<Program>(source)) {}
Jinja::~Jinja() = default;

std::string Jinja::render(const std::string& variables) const {
  jinja::context context(program_->source);
  jinja::global_from_json(context, common_json::parse(variables), /*mark_input=*/false);
  jinja::runtime runtime(context);
  const jinja::value results = runtime.execute(program_->parsed);
  return jinja::runtime::gather_string_parts(results)->as_string().str();
}

}  // namespace fsdp::data::detail
