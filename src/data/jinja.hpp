// SPDX-License-Identifier: Apache-2.0
/// What runs templates: llama.cpp's engine (jinja.cpp), or nothing (no_jinja.cpp);
/// cmake/jinja.cmake chooses.
#pragma once

#include <memory>
#include <string>

namespace fsdp::data::detail {

/// A template, parsed.
class Jinja {
 public:
  /// What is missing; empty when templates run here.
  static std::string why_not();

  /// @throws std::exception with the engine's words for a template that it cannot parse
  explicit Jinja(const std::string& source);
  ~Jinja();
  Jinja(const Jinja&) = delete;
  Jinja& operator=(const Jinja&) = delete;

  /// The text that comes of an object of variables, in JSON. @throws std::exception with the
  /// engine's or the template's words
  std::string render(const std::string& variables) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace fsdp::data::detail
