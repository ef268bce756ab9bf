# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of ./dev: formatting, own checks, clang-tidy. Expects root and the functions of ./dev.
# shellcheck disable=SC2154,SC2034

clang_format_version=19.1.7

# The formatter: Debian's of the pinned version, else the wheel's.
clang_format() {
  if have clang-format-19; then
    printf 'clang-format-19'
    return
  fi
  local environment=$root/build/lint-venv
  if [[ ! -x $environment/bin/clang-format ]]; then
    say "clang-format $clang_format_version into build/lint-venv"
    install_venv "$environment" "clang-format==$clang_format_version" >&2 ||
      die "clang-format could not be installed."
  fi
  printf '%s' "$environment/bin/clang-format"
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

command_lint() {
  local all=no fix=no tool files lint_failed=no
  for argument in "$@"; do
    case $argument in
      --all) all=yes ;;
      --fix) fix=yes ;;
      *) die "lint knows --all and --fix, not '$argument'." ;;
    esac
  done
  tool=$(clang_format)
  mapfile -t files < <(sources)
  if [[ $fix == yes ]]; then
    (cd "$root" && "$tool" -i "${files[@]}")
    (cd "$root" && python3 tools/check_files.py --fix && python3 tools/check_faults.py --fix)
  fi
  say "Lint of ${#files[@]} C++ files"
  check "format (./dev lint --fix mends it)" check_format "$tool" "${files[@]}"
  check "levels of modules" python3 tools/check_levels.py
  check "named notes" python3 tools/check_notes.py
  check "licence lines, lengths, header list" python3 tools/check_files.py
  check "fault table" python3 tools/check_faults.py
  check "planted bugs still fit" python3 tools/check_mutants.py
  if have shellcheck; then
    check "shell scripts" shellcheck -x dev .ci/run tools/*.sh tools/data/*.sh bench/*.sh bench/peers/*.sh
  fi
  if have ruff; then
    check "Python of bench/ (ruff)" ruff check --quiet bench
  fi
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

# clang-tidy of torch-free files and of changed ones, and each public header alone.
lint_all() {
  local tidy=clang-tidy-19 free changed
  preset=release
  setup_packages
  setup_torch
  configure
  check "each public header alone" cmake --build build/release --target check_headers -j "$(jobs)"
  have "$tidy" || tidy=clang-tidy
  if ! have "$tidy"; then
    say "  skipped clang-tidy: not installed (Debian: clang-tidy-19)"
    return
  fi
  preset=tidy
  configure
  mapfile -t free < <(cd "$root" && python3 tools/check_levels.py --torch-free-sources)
  mapfile -t changed < <(cd "$root" && git diff --name-only --diff-filter=d "$(git merge-base HEAD origin/main 2>/dev/null || echo HEAD)" -- 'src/*.cpp' 'apps/*.cpp')
  mapfile -t files < <(printf '%s\n' "${free[@]}" "${changed[@]}" | sort -u | sed '/^$/d')
  check "clang-tidy of ${#files[@]} files" run_tidy "$tidy" "${files[@]}"
  preset=release
}

run_tidy() {
  local tidy=$1
  shift
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(jobs)" "$tidy" -p build/tidy --quiet --warnings-as-errors='*' 2>/dev/null
}
