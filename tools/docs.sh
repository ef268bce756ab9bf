# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of ./dev: the documentation. Expects root and the functions of ./dev.
# shellcheck disable=SC2154

command_docs() {
  local done_stamp environment=$root/build/docs-venv
  local log=$root/build/docs.log
  mkdir -p "$root/build"
  done_stamp=$(stamp docs "$(cat "$root/tools/requirements-docs.txt")")
  if [[ ! -e $done_stamp || ! -x $environment/bin/mkdocs ]]; then
    say "[1/2] mkdocs into build/docs-venv (about 20 seconds)"
    if ! install_venv "$environment" -r "$root/tools/requirements-docs.txt" >"$log" 2>&1; then
      tail -n 10 "$log" >&2
      die "mkdocs could not be installed."
    fi
    set_stamp "$done_stamp"
  fi
  say "[2/2] Pages into build/docs"
  # Not --quiet: it drops the very warnings that --strict counts.
  if ! (cd "$root" && NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true \
    "$environment/bin/mkdocs" build --strict) >"$log" 2>&1; then
    grep -vE '^INFO ' "$log" >&2
    say "The documentation has faults (all lines: build/docs.log)."
    return 1
  fi
  say "Built: build/docs/index.html"
}
