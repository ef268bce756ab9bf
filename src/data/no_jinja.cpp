// SPDX-License-Identifier: Apache-2.0
#include "data/jinja.hpp"

#include <stdexcept>

namespace fsdp::data::detail {

struct Jinja::Program {};

std::string Jinja::why_not() {
  return "this build cannot run chat templates: what runs them could not be fetched when it was "
         "configured (package llama-cpp-python, by pip); configure again with a network, or with "
         "-DFSDP_JINJA_DIR=DIR of llama.cpp's sources";
}

Jinja::Jinja(const std::string& /*source*/) { throw std::runtime_error(why_not()); }
Jinja::~Jinja() = default;

std::string Jinja::render(const std::string& /*variables*/) const { return {}; }

}  // namespace fsdp::data::detail
