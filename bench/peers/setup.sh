# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Part of every benchmark: the environment of the peers, then the Python program of the same name.
# A benchmark's .sh sources this and calls run_bench "$@".

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034  # read by tools/setup.sh
stamps=$root/build/stamps
# shellcheck source=tools/setup.sh
source "$root/tools/setup.sh"

# .venv-peers with what bench/peers/requirements.txt says. DeepSpeed builds against the torch that is
# there, so it comes second; its CPU operators are compiled when they are first used.
setup_peers() {
  local environment=$root/.venv-peers requirements=$root/bench/peers/requirements.txt
  local log=$root/build/bench/peers.log rest done_stamp
  done_stamp=$(stamp peers "$(<"$requirements")")
  [[ ! -e $done_stamp || ! -x $environment/bin/python ]] || return 0
  mkdir -p "$root/build/bench"
  printf 'The peers into .venv-peers (0.2 to 3 GB to fetch, 2 to 6 minutes)\n' >&2
  rest=$(grep -v '^#\|^deepspeed' "$requirements")
  # shellcheck disable=SC2086  # one requirement a word
  if ! { install_venv "$environment" $rest &&
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu install_venv "$environment" --no-build-isolation \
      -r "$requirements"; } >"$log" 2>&1; then
    tail -n 10 "$log" >&2
    printf 'bench: .venv-peers could not be installed (all of it: build/bench/peers.log)\n' >&2
    exit 2
  fi
  set_stamp "$done_stamp"
}

run_bench() {
  local name
  name=$(basename "$0" .sh)
  setup_peers
  PYTHONPATH=$root/bench exec "$root/.venv-peers/bin/python" "$root/bench/programs/$name.py" "$@"
}
