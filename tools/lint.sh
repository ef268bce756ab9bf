# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of ./dev: formatting, own checks, clang-tidy. Expects root and the functions of ./dev.
# shellcheck disable=SC2154

# Puts the tools of tools/requirements-lint.txt into build/lint-venv. Where that fails the system's own
# serve, and what is missing is said.
setup_lint() {
  local environment=$root/build/lint-venv done_stamp
  local log=$root/build/lint-venv.log
  done_stamp=$(stamp lint "$(cat "$root/tools/requirements-lint.txt")")
  if [[ ! -e $done_stamp || ! -x $environment/bin/ruff ]]; then
    say "clang-format, shellcheck and ruff into build/lint-venv (a few seconds)"
    mkdir -p "$root/build"
    if ! install_venv "$environment" -r "$root/tools/requirements-lint.txt" >"$log" 2>&1; then
      say "  They could not be installed (build/lint-venv.log); going on with those of the system."
      return
    fi
    set_stamp "$done_stamp"
  fi
}

# lint_tool NAME ...: prints the first of these that is here; the pinned one before the system's.
lint_tool() {
  local name
  for name in "$root/build/lint-venv/bin/$1" "$@"; do
    if have "$name"; then
      printf '%s' "$name"
      return
    fi
  done
}

# Own C++ files, committed or not.
sources() {
  (cd "$root" && git ls-files -co --exclude-standard -- '*.cpp' '*.hpp' '*.h' |
    grep -v '^third_party/' | while read -r file; do [[ -e $file ]] && printf '%s\n' "$file"; done)
}

check() {
  local name=$1
  shift
  if (cd "$root" && "$@"); then
    printf '  ok      %s\n' "$name"
  else
    printf '  FAILED  %s\n' "$name"
    lint_failed=yes
  fi
}

# check_with TOOL NAME COMMAND...: the same, when there is such a tool. Without one the check did not
# run, which is said, and with --strict fails.
check_with() {
  local tool=$1 name=$2
  shift 2
  if [[ -n $tool ]]; then
    check "$name" "$@"
    return
  fi
  printf '  not run %s: its tool is not installed\n' "$name"
  if [[ $lint_strict == yes ]]; then lint_failed=yes; fi
}

command_lint() {
  local all=no fix=no files lint_strict=no lint_failed=no clang_format shellcheck ruff
  for argument in "$@"; do
    case $argument in
      --all) all=yes ;;
      --fix) fix=yes ;;
      --strict) lint_strict=yes ;;
      *) die "lint knows --all, --fix and --strict, not '$argument'." ;;
    esac
  done
  setup_lint
  clang_format=$(lint_tool clang-format clang-format-19)
  shellcheck=$(lint_tool shellcheck)
  ruff=$(lint_tool ruff)
  mapfile -t files < <(sources)
  if [[ $fix == yes ]]; then
    if [[ -n $clang_format ]]; then (cd "$root" && "$clang_format" -i "${files[@]}"); fi
    (cd "$root" && python3 tools/check_files.py --fix && python3 tools/check_faults.py --fix &&
      python3 tools/check_snippets.py --fix)
  fi
  say "Lint of ${#files[@]} C++ files"
  check_with "$clang_format" "format (./dev lint --fix mends it)" check_format "$clang_format" "${files[@]}"
  check "levels of modules" python3 tools/check_levels.py
  check "named notes" python3 tools/check_notes.py
  check "licence lines, lengths, header list" python3 tools/check_files.py
  check "fault table" python3 tools/check_faults.py
  check "names in pages and comments" python3 tools/check_names.py
  check "quoted examples" python3 tools/check_snippets.py
  check "planted bugs still fit" python3 tools/check_mutants.py
  check_with "$shellcheck" "shell scripts" check_scripts "$shellcheck"
  check_with "$ruff" "Python (ruff)" "$ruff" check --quiet .
  if [[ $all == yes ]]; then
    lint_all
  fi
  [[ $lint_failed == no ]]
}

# Names the files that the formatter would change.
check_format() {
  local formatter=$1 changed
  shift
  changed=$("$formatter" --dry-run -Werror "$@" 2>&1 |
    sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error: code should be clang-formatted.*/\1/p' | uniq -c)
  [[ -z $changed ]] || awk '{printf "          %s: %d places\n", $2, $1}' <<<"$changed"
  [[ -z $changed ]]
}

check_scripts() {
  local scripts
  mapfile -t scripts < <(git ls-files -co --exclude-standard -- dev .ci/run '*.sh')
  "$1" -x "${scripts[@]}"
}

# clang-tidy of torch-free files and of changed ones, and each public header alone.
lint_all() {
  local tidy=clang-tidy-19 free changed
  setup_packages
  setup_torch release
  configure release
  check "each public header alone" cmake --build build/release --target check_headers -j "$(jobs)"
  have "$tidy" || tidy=clang-tidy
  if ! have "$tidy"; then
    check_with "" "clang-tidy (Debian: clang-tidy-19)"
    return
  fi
  configure tidy
  mapfile -t free < <(cd "$root" && python3 tools/check_levels.py --torch-free-sources)
  mapfile -t changed < <(cd "$root" && git diff --name-only --diff-filter=d "$(git merge-base HEAD origin/main 2>/dev/null || echo HEAD)" -- 'src/*.cpp' 'apps/*.cpp')
  mapfile -t files < <(printf '%s\n' "${free[@]}" "${changed[@]}" | sort -u | sed '/^$/d')
  check "clang-tidy of ${#files[@]} files" run_tidy "$tidy" "${files[@]}"
}

run_tidy() {
  local tidy=$1
  shift
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(jobs)" "$tidy" -p build/tidy --quiet --warnings-as-errors='*' 2>/dev/null
}
