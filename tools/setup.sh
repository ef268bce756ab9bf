# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of ./dev: what this machine lacks, and how it gets here. Expects root and stamps.
# shellcheck disable=SC2154

say() { printf '%s\n' "$*" >&2; }
die() {
  say "dev: $*"
  exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }

# stamp NAME TEXT: the path of the stamp that says "NAME is set up for exactly TEXT".
stamp() { printf '%s/%s-%s' "$stamps" "$1" "$(printf '%s' "$2" | cksum | cut -d' ' -f1)"; }
set_stamp() {
  mkdir -p "$stamps"
  : >"$1"
}

# Compiler and machine -----------------------------------------------------------------------------

compiler() {
  local candidate
  if [[ -n ${CXX:-} ]]; then
    printf '%s' "$CXX"
    return
  fi
  for candidate in clang++-19 clang++-18 clang++-17 clang++-16 clang++ g++ c++; do
    if have "$candidate"; then
      case $candidate in
        clang++) [[ $("$candidate" -dumpversion | cut -d. -f1) -ge 16 ]] || continue ;;
        *) ;;
      esac
      printf '%s' "$candidate"
      return
    fi
  done
}

has_header() {
  local cxx
  cxx=$(compiler)
  [[ -n $cxx ]] && printf '#include <%s>\n' "$1" | "$cxx" -std=c++20 -x c++ -M - >/dev/null 2>&1
}

# A translation unit with torch/torch.h takes 1.2 GB, so memory may allow fewer jobs than cores.
jobs() {
  local cores memory_mib limit
  if [[ -n ${FSDP_JOBS:-} ]]; then
    printf '%s' "$FSDP_JOBS"
    return
  fi
  cores=$(nproc 2>/dev/null || echo 2)
  memory_mib=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo 2>/dev/null || echo 4096)
  if [[ -r /sys/fs/cgroup/memory.max ]]; then
    limit=$(</sys/fs/cgroup/memory.max)
    if [[ $limit != max && $((limit / 1048576)) -lt $memory_mib ]]; then
      memory_mib=$((limit / 1048576))
    fi
  fi
  local by_memory=$((memory_mib / 1500))
  ((by_memory >= 1)) || by_memory=1
  printf '%s' "$((cores < by_memory ? cores : by_memory))"
}

# Set-up, step 1: packages of the system -----------------------------------------------------------

# Who needs which header, and the package of Debian that has it. Whoever adds fsdp to a project of
# their own needs what is marked core, or lets CMake fetch it.
headers='core nlohmann/json.hpp nlohmann-json3-dev
core libdeflate.h libdeflate-dev
program CLI/CLI.hpp libcli11-dev
program toml++/toml.h libtomlplusplus-dev
models pcre2.h libpcre2-dev
models utf8proc.h libutf8proc-dev
models zlib.h zlib1g-dev
models zstd.h libzstd-dev
tests gtest/gtest.h libgtest-dev
tests gmock/gmock.h libgmock-dev'

# Adds to `missing` (without which nothing builds) and `wanted` (which only makes it faster).
find_missing_packages() {
  missing=() wanted=()
  have git || missing+=(git)
  have cmake || missing+=(cmake)
  python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
  [[ -n $(compiler) ]] || missing+=(g++)
  have clang++-19 || [[ -n ${CXX:-} ]] || wanted+=(clang-19)
  local header package
  while read -r _ header package; do
    [[ -r /usr/include/$header ]] || has_header "$header" || missing+=("$package")
  done <<<"$headers"
  have ninja || wanted+=(ninja-build)
  have ccache || wanted+=(ccache)
  have mold || have ld.lld || have ld.lld-19 || wanted+=(mold)
}

# Runs a command as root, when that needs no password.
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  else
    sudo -n "$@"
  fi
}
can_be_root() { [[ $(id -u) -eq 0 ]] || { have sudo && sudo -n true >/dev/null 2>&1; }; }

install_packages() {
  local package available=()
  local log=$root/build/packages.log
  mkdir -p "$root/build"
  if ! as_root apt-get update </dev/null >"$log" 2>&1; then
    say "      apt-get update failed; its last lines:"
    tail -n 5 "$log" >&2
  fi
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      available+=("$package")
    fi
  done
  [[ ${#available[@]} -gt 0 ]] || return 0
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    "${available[@]}" </dev/null >>"$log" 2>&1 || {
    say "      apt-get install failed; its last lines (all of them: build/packages.log):"
    tail -n 15 "$log" >&2
  }
}

# Whether the compiler has the run-time libraries of the sanitizers, which are a package of their own.
links_sanitizers() {
  printf 'int main() {}\n' | "$(compiler)" -fsanitize=address,undefined -x c++ - -o /dev/null >/dev/null 2>&1
}

setup_sanitizers() {
  local cxx package
  cxx=$(compiler)
  if links_sanitizers; then return; fi
  package=libclang-rt-$("$cxx" -dumpversion | cut -d. -f1)-dev
  if [[ $cxx == *clang* ]] && have apt-get && can_be_root; then
    say "[1/3] Debian packages: $package (a few seconds)"
    install_packages "$package"
  fi
  links_sanitizers || die "$cxx cannot link with -fsanitize=address,undefined. On Debian clang's libraries for it are" \
    "in $package: sudo apt-get install $package"
}

setup_packages() {
  local done_stamp missing wanted
  done_stamp=$(stamp packages "$(cksum <"$root/tools/setup.sh") ${CXX:-}")
  [[ ${1:-} != --recheck && -e $done_stamp ]] && return
  find_missing_packages
  if [[ ${#missing[@]} -gt 0 || ${#wanted[@]} -gt 0 ]] && have apt-get && can_be_root; then
    say "[1/3] Debian packages: ${missing[*]:-} ${wanted[*]:-} (about 1 minute)"
    install_packages "${missing[@]}" "${wanted[@]}"
    find_missing_packages
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    say "dev: this machine lacks: ${missing[*]}"
    if [[ ${#wanted[@]} -gt 0 ]]; then
      say "     and, for a build several times faster: ${wanted[*]}"
    fi
    say "     Installing them needs root. On Debian or Ubuntu:"
    say "       sudo apt-get install ${missing[*]} ${wanted[*]:-}"
    say "     elsewhere the packages have similar names. Then run the same command again."
    say "     The library alone, in a project of yours, needs less: docs/how-to/add-to-your-project.md"
    exit 2
  fi
  if [[ ${#wanted[@]} -gt 0 ]]; then
    say "[1/3] Going on without ${wanted[*]}: the build works and takes longer."
  fi
  check_versions
  set_stamp "$done_stamp"
}

check_versions() {
  local cmake_version cxx
  cmake_version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  if [[ $(printf '%s\n3.25\n' "$cmake_version" | sort -V | head -n 1) != 3.25 ]]; then
    die "CMake is $cmake_version; 3.25 or newer is needed (python3 -m pip install cmake has one)."
  fi
  cxx=$(compiler)
  if ! printf '#include <concepts>\n#include <span>\nint main() {}\n' |
    "$cxx" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; then
    die "the compiler $cxx does not compile C++20; g++ 12 or clang++ 16 do. Name another with CXX=..."
  fi
}

# Set-up, step 2: LibTorch -------------------------------------------------------------------------

# other_libtorch PRESET [-DX=Y ...]: whether another LibTorch is in use: named in the environment, in
# the arguments, or configured.
other_libtorch() {
  local preset=$1 argument
  shift
  [[ -z ${FSDP_TORCH:-} ]] || return 0
  for argument in "$@"; do
    case $argument in -DCMAKE_PREFIX_PATH=?* | -DTorch_DIR=?*) return 0 ;; *) ;; esac
  done
  grep -qs '^CMAKE_PREFIX_PATH:[A-Z]*=.' "$root/build/$preset/CMakeCache.txt"
}

# install_wheels VENV STAMP LOG TEXT PACKAGE...: into the folder VENV, once, saying TEXT when there is
# something to fetch. Fails when that failed; the installer's lines are in build/LOG.
install_wheels() {
  local venv=$root/$1 name=$2 log=$root/build/$3 text=$4 done_stamp
  shift 4
  done_stamp=$(stamp "$name" "$*")
  [[ ! -e $done_stamp || ! -x $venv/bin/python ]] || return 0
  mkdir -p "$root/build"
  if ! satisfied "$venv" "$@"; then
    say "[2/3] $text"
    install_venv "$venv" "$@" >"$log" 2>&1 || return 1
  fi
  set_stamp "$done_stamp"
}

# setup_torch PRESET [-DX=Y ...]
setup_torch() {
  local packages=() line
  while read -r line; do
    if [[ $line == torch==* ]] && { [[ $1 == cuda ]] || other_libtorch "$@"; }; then continue; fi
    packages+=("$line")
  done < <(requirements "$root/tools/requirements.txt")
  if [[ $1 == cuda ]] && ! other_libtorch "$@"; then setup_cuda_torch; fi
  if ! install_wheels .venv venv wheel.log \
    "${packages[*]} into .venv (0.2 to 3 GB to fetch, 1 to 5 minutes)" "${packages[@]}"; then
    say "      This failed; the last lines (all of them: build/wheel.log):"
    tail -n 10 "$root/build/wheel.log" >&2
    die "the wheels could not be installed. With a LibTorch of your own: FSDP_TORCH=DIR ./dev ..."
  fi
}

# A LibTorch that is built for CUDA, beside the one that everything else uses.
setup_cuda_torch() {
  local packages=()
  mapfile -t packages < <(requirements "$root/tools/requirements-cuda.txt")
  if ! install_wheels .venv-cuda cuda-venv cuda-wheel.log \
    "${packages[*]} into .venv-cuda (3 GB to fetch, 6 GB on disk, 2 to 15 minutes)" "${packages[@]}"; then
    say "      This failed; the last lines (all of them: build/cuda-wheel.log):"
    tail -n 10 "$root/build/cuda-wheel.log" >&2
    die "LibTorch with CUDA could not be installed. With one of your own: FSDP_TORCH=DIR ./dev build cuda"
  fi
}

# setup_oracles PRESET: what tests compare with, in .venv. Without it those tests skip, which is said.
setup_oracles() {
  local packages=()
  if other_libtorch "$1"; then
    say "Going on without transformers and PEFT: they need the torch that .venv has."
    return
  fi
  mapfile -t packages < <(requirements "$root/tools/requirements-oracles.txt")
  if ! install_wheels .venv oracles oracles.log \
    "For tests: ${packages[*]} into .venv (60 MB to fetch, 1 minute)" "${packages[@]}"; then
    say "      This failed (build/oracles.log); the tests that compare with them skip."
  fi
}

# requirements FILE: its lines without comments.
requirements() { grep -v '^#' "$1"; }

# install_venv DIRECTORY PIP-ARGUMENTS: a virtual environment with these packages in it.
install_venv() {
  local directory=$1
  shift
  [[ -x $directory/bin/python ]] || python3 -m venv "$directory" || return 1
  "$directory/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
    "$@" </dev/null
}

# satisfied VENV REQUIREMENT...: whether it has them already (import metadata only, no package index).
satisfied() {
  local venv=$1
  shift
  "$venv/bin/python" - "$@" <<'PYTHON' >/dev/null 2>&1
import sys
from importlib.metadata import version
from pip._vendor.packaging.requirements import Requirement

for text in sys.argv[1:]:
    requirement = Requirement(text)
    if not requirement.specifier.contains(version(requirement.name)):
        sys.exit(1)
PYTHON
}
