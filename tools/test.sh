# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of ./dev: runs the tests. Expects root and the functions of ./dev.
# shellcheck disable=SC2154

command_test() {
  local all=no arguments=()
  if [[ ${1:-} == --sanitized ]]; then
    shift
    command_sanitize "$@"
    return
  fi
  if [[ $# -gt 0 && $1 != -* ]]; then
    test_cases "$@"
    return
  fi
  while [[ $# -gt 0 ]]; do
    case $1 in
      --all) all=yes ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  if [[ $all == yes ]]; then
    test_everything "${arguments[@]}"
    return
  fi
  configured release
  if [[ ${#arguments[@]} -eq 0 ]]; then
    build_targets release all
  else
    build_selected release -LE slow "${arguments[@]}"
  fi
  run_ctest release -LE slow "${arguments[@]}"
}

# configured PRESET: everything up to a build folder, and what tests compare with.
configured() {
  setup_packages
  setup_torch "$1"
  setup_oracles "$1"
  configure "$1"
  # What a changed CMakeLists.txt adds is to be known before anything is selected.
  if [[ -e $root/build/$1/build.ninja ]]; then
    ninja -C "$root/build/$1" build.ninja >"$root/build/regenerate-$1.log" 2>&1 ||
      die "CMake failed: build/regenerate-$1.log says why."
  fi
}

# build_selected PRESET [ctest options]: what the selected tests run, and nothing else.
build_selected() {
  local preset=$1 targets
  shift
  mapfile -t targets < <(cd "$root" && ctest --preset "$preset" -N "$@" |
    python3 tools/select_tests.py targets "build/$preset")
  if [[ ${#targets[@]} -gt 0 ]]; then build_targets "$preset" "${targets[@]}"; fi
}

# test_cases Suite.Name ... [GoogleTest options]: runs single cases in sight of the caller.
test_cases() {
  local patterns=() plan targets=() binary filter failed=no
  while [[ $# -gt 0 && $1 != -* ]]; do
    patterns+=("$1")
    shift
  done
  configured release
  plan=$(cd "$root" && python3 tools/select_tests.py cases build/release "${patterns[@]}") || exit 2
  mapfile -t targets < <(cut -f1 <<<"$plan")
  build_targets release "${targets[@]}"
  while IFS=$'\t' read -r binary filter; do
    say "$binary --gtest_filter='$filter'"
    OMP_NUM_THREADS=1 FSDP_BINARY=$root/build/release/bin/fsdp \
      "$root/build/release/$binary" "--gtest_filter=$filter" "$@" || failed=yes
  done <<<"$plan"
  [[ $failed == no ]]
}

# run_ctest PRESET [ctest options]: the runner's lines as they are, a report for .ci/run, and what was
# skipped: of a program that passes ctest keeps the whole output, or the skips in it would be lost.
run_ctest() {
  local name=$1 status=0
  local report=$root/build/$name/tests.xml
  shift
  (cd "$root" && ctest --preset "$name" -j "$(jobs)" --output-junit "$report" \
    --test-output-size-passed 10000000 "$@") || status=$?
  python3 "$root/tools/check_skips.py" "$report"
  # What a sanitizer says of a process that a test starts need not fail the test.
  case $name in
    asan | tsan) python3 "$root/tools/sanitize.py" reports "$report" >&2 || status=1 ;;
    *) ;;
  esac
  return "$status"
}

# command_sanitize [options of tools/sanitize.py share]: a share of the tests under the sanitizers.
command_sanitize() {
  configured asan
  configured tsan
  (cd "$root" && python3 tools/sanitize.py share "$@" build/tsan build/asan)
}

# ./dev test --all -----------------------------------------------------------------------------------

# What it runs: preset, target to build, minutes (two cores, built before), and what that is.
everything='release all 40 all tests, the slow ones too
dev all 10 the tests of the engine, with the assertions of the headers of LibTorch
asan all 60 all tests but packaging, under the address and undefined-behaviour sanitizers
tsan torch_free_tests 6 the tests without LibTorch, under the thread sanitizer
lint - 15 formatting, own checks, clang-tidy, each public header alone'

# Runs each part whatever became of those before, then sums up; fails when one of them failed.
test_everything() {
  local part target minutes what total=0 started summary=() failed=no line
  while read -r part target minutes what; do total=$((total + minutes)); done <<<"$everything"
  say "./dev test --all: about $total minutes on two cores, and as long again for a first build"
  while read -r part target minutes what; do
    say "$(printf '  %-8s %3d min  %s' "$part" "$minutes" "$what")"
  done <<<"$everything"
  while read -r part target minutes what <&3; do
    say ""
    say "== $part: $what (about $minutes minutes)"
    started=$SECONDS
    line=$(part_result "$part" "$target" "$@")
    summary+=("$(printf '  %-8s %s, %s' "$part" "$line" "$(duration $((SECONDS - started)))")")
    [[ $line == passed* ]] || failed=yes
  done 3<<<"$everything"
  say ""
  say "Summary of ./dev test --all"
  printf '%s\n' "${summary[@]}" >&2
  [[ $failed == no ]]
}

# part_result PART TARGET [ctest options]: runs a part, its lines on standard error, and prints how it
# went: "passed ..." or "FAILED ...".
part_result() {
  local part=$1 target=$2 report status=0
  shift 2
  if [[ $part == lint ]]; then
    if (command_lint --all) >&2; then printf 'passed'; else printf 'FAILED: see above'; fi
    return
  fi
  report=$root/build/$part/tests.xml
  rm -f "$report"
  if ! (configured "$part" && build_targets "$part" "$target") >&2; then
    printf 'FAILED: it does not build'
    return
  fi
  # Options that select tests may select none of some part.
  [[ $# -eq 0 ]] || set -- --no-tests=ignore "$@"
  # Debug: what LibTorch's headers assert without NDEBUG concerns the engine.
  [[ $part != dev ]] || set -- -L parity "$@"
  run_ctest "$part" "$@" >&2 || status=$?
  describe_report "$report" "$status"
}

# describe_report REPORT STATUS: the runner's report in a few words, by its first element.
describe_report() {
  local failed skipped total names
  if [[ ! -s $1 ]]; then
    if [[ $2 -eq 0 ]]; then printf 'passed: no test is selected'; else printf 'FAILED: no report'; fi
    return
  fi
  total=$(report_number tests "$1")
  failed=$(report_number failures "$1")
  skipped=$(($(report_number skipped "$1") + $(report_number disabled "$1")))
  if [[ $2 -eq 0 ]]; then
    printf 'passed: %d tests' "$((total - skipped))"
  else
    names=$(sed -n 's/.*<testcase name="\([^"]*\)".* status="fail".*/\1/p' "$1" | tr '\n' ' ')
    printf 'FAILED: %d of %d tests: %s' "$failed" "$total" "${names% }"
  fi
  [[ $skipped -eq 0 ]] || printf ', %d skipped (what they need is not here)' "$skipped"
}

# report_number ATTRIBUTE REPORT
report_number() { grep -o "\b$1=\"[0-9]*\"" "$2" | head -n 1 | tr -dc '0-9'; }

duration() { printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); }
