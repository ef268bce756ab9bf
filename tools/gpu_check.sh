#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks fsdp on a machine with a GPU, which may be lent for minutes and have no network: builds with what
# the machine and .gpu/ have, then runs parts, each within its budget, and says of each what came out and
# which did not run. The same on the CPU or on the simulated device, to try the script itself.
#
#   tools/gpu_check.sh pack               here, where Debian's packages are: what the build needs, into .gpu/
#   tools/gpu_check.sh [options]          there
#     --device cuda|sim|cpu    default: cuda
#     --only A,B | --skip A,B  parts: build device_tests program sanitizer step_time memory
#     --minutes N              all parts together (default: 9.5); what no longer fits does not run
#     --scale X                times the sizes of models (default: 1; 0.01 to try the script)
#     --torch DIR              LibTorch (default: that of python3's torch)
#     --build DIR              default: build/gpu
#     --out DIR                default: $OUT, else build/gpu/out; gets report.json and the logs
# Exit code: 0 when all parts that ran passed.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
parts=(build device_tests program sanitizer step_time memory)
# Seconds that each may take at most, measured from its own start.
declare -A budget=([build]=420 [device_tests]=90 [program]=90 [sanitizer]=120 [step_time]=120 [memory]=150)
# A part runs in a shell of its own, which has these from the first.
if [[ ${1:-} != --functions ]]; then
  device=cuda only='' skip='' minutes=9.5 scale=1 torch='' build=$root/build/gpu out=${OUT:-}
fi

die() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 2
}

# What a build needs beside a compiler, CMake and LibTorch: headers and static libraries of Debian.
pack() {
  local to=$root/.gpu/prefix file library
  rm -rf "$root/.gpu"
  mkdir -p "$to/include" "$to/lib"
  for file in nlohmann CLI gtest gmock libdeflate.h pcre2.h; do
    [[ -e /usr/include/$file ]] || die "/usr/include/$file is not here: ./dev setup installs it"
    cp -r "/usr/include/$file" "$to/include/"
  done
  for library in libdeflate libpcre2-8 libgtest libgtest_main libgmock libgmock_main; do
    file=$(find /usr/lib -name "$library.a" | head -n 1)
    [[ -n $file ]] || die "$library.a is not here"
    cp "$file" "$to/lib/"
  done
  du -sh "$root/.gpu"
  printf 'Take .gpu along (it is ignored by git), then run tools/gpu_check.sh there.\n'
}

parse() {
  while [[ $# -gt 0 ]]; do
    [[ $# -ge 2 ]] || die "$1 needs a value"
    case $1 in
      --device) device=$2 ;;
      --only) only=$2 ;;
      --skip) skip=$2 ;;
      --minutes) minutes=$2 ;;
      --scale) scale=$2 ;;
      --torch) torch=$2 ;;
      --build) build=$2 ;;
      --out) out=$2 ;;
      *) die "there is no option $1; the first lines of this script list them" ;;
    esac
    shift 2
  done
  [[ $device =~ ^(cuda|sim|cpu)$ ]] || die "--device is $device, must be cuda, sim or cpu"
  out=${out:-$build/out}
  local name
  for name in ${only//,/ } ${skip//,/ }; do
    [[ -n ${budget[$name]:-} ]] || die "there is no part '$name'; there are: ${parts[*]}"
  done
}

# scaled N: N times --scale, at least 1.
scaled() { python3 -c "print(max(1, round($1 * $scale)))"; }

# ---- parts; each writes to $log, and what it measured, as JSON, to $result ------------------------------

part_build() {
  local prefix=$torch arguments=()
  prefix=${prefix:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')}
  [[ $device != cuda ]] || arguments+=(-DFSDP_CUDA=ON)
  [[ ! -d $root/.gpu/prefix ]] ||
    arguments+=("-DCMAKE_INCLUDE_PATH=$root/.gpu/prefix/include" "-DCMAKE_LIBRARY_PATH=$root/.gpu/prefix/lib"
      "-DCMAKE_CXX_FLAGS=-isystem $root/.gpu/prefix/include")
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFSDP_BUILD_EXAMPLES=OFF \
    "-DCMAKE_PREFIX_PATH=$prefix;$root/.gpu/prefix" "${arguments[@]}"
  cmake --build "$build" --target fsdp_app device_transport_test bench_device
}

part_device_tests() {
  local filter='*TransportContract*/nccl_1:*TransportContract*/staged_1:*TransportContract*/staged_2'
  [[ $device != sim ]] || filter+=':Nccl.*:Staged.*:DeviceChoice.*'
  if [[ $device == cpu ]]; then skipped "the device cases need a device"; fi
  OMP_NUM_THREADS=1 FSDP_TEST_DEVICE=$device "$build/bin/device_transport_test" "--gtest_filter=$filter"
}

# Trains a few steps here and on the CPU, from the same seed: the losses must agree.
part_program() {
  if [[ $device == sim ]]; then skipped "the program does not know the simulated device"; fi
  local wish=$device steps=20 run
  for run in "cpu 1 auto" "$wish 1 auto" "$wish 2 staged"; do
    read -r on ranks transport <<<"$run"
    if [[ $on == cpu ]]; then transport=auto; fi
    rm -f "$out/loss-$on-$ranks.jsonl"
    "$build/bin/fsdp" train --device "$on" --ranks "$ranks" --transport "$transport" --steps $steps --sample 0 --out '' \
      --eval-every 0 --eval-batches 1 --log "$out/loss-$on-$ranks.jsonl"
  done
  python3 - "$out" "$wish" "$result" <<'PYTHON'
import json, sys

out, wish, result = sys.argv[1:]
losses = lambda name: [json.loads(line)["loss"] for line in open(f"{out}/loss-{name}.jsonl")]
cpu = losses("cpu-1")
worst = {name: max(abs(a - b) for a, b in zip(cpu, losses(name), strict=True)) for name in (f"{wish}-1", f"{wish}-2")}
json.dump({"largest_difference_of_losses": worst}, open(result, "w"))
assert len(cpu) == 20 and max(worst.values()) < 0.02, worst
PYTHON
}

part_sanitizer() {
  [[ $device == cuda ]] || skipped "compute-sanitizer is for CUDA"
  command -v compute-sanitizer >/dev/null || skipped "compute-sanitizer is not on this machine"
  compute-sanitizer --tool memcheck --error-exitcode 9 "$build/bin/bench_device" --device cuda --layers 2 --width 64 \
    --seq 32 --warmup 0 --steps 2
}

# The engine's own cost: one rank, the same model by LibTorch alone, by fsdp, and by PyTorch's FSDP2.
part_step_time() {
  local sizes
  sizes=(--layers "$(scaled 12)" --width "$((64 * $(scaled 12)))" --heads 8 --seq "$((8 * $(scaled 64)))"
    --vocab "$((16 * $(scaled 2048)))" --batch 4 --warmup 3 --steps 10)
  "$build/bin/bench_device" --device "$device" --system plain "${sizes[@]}" | tee "$out/step-plain.json"
  "$build/bin/bench_device" --device "$device" --system fsdp "${sizes[@]}" | tee "$out/step-fsdp.json"
  if [[ $device != sim ]]; then
    python3 "$root/tools/gpu_fsdp2.py" --device "$device" "${sizes[@]}" | tee "$out/step-fsdp2.json" ||
      printf 'FSDP2 did not run\n'
  fi
  collect step-plain step-fsdp step-fsdp2
}

# 7 billion parameters in bfloat16, recomputed, and 3 billion with offload, against the promise.
part_memory() {
  local width
  width=$((128 * $(scaled 32)))
  "$build/bin/bench_device" --device "$device" --dtype bfloat16 --layers "$(scaled 34)" --width "$width" --heads 32 \
    --seq "$((8 * $(scaled 256)))" --vocab "$((16 * $(scaled 2000)))" --recompute --warmup 1 --steps 2 |
    tee "$out/memory-7b.json"
  "$build/bin/bench_device" --device "$device" --layers "$(scaled 15)" --width "$width" --heads 32 \
    --seq "$((8 * $(scaled 128)))" --vocab "$((16 * $(scaled 2000)))" --recompute --offload --warmup 1 --steps 1 |
    tee "$out/memory-3b-offload.json"
  collect memory-7b memory-3b-offload
  python3 - "$result" <<'PYTHON'
import json, sys

for name, line in json.load(open(sys.argv[1])).items():
    assert line["ledger_peak_mb"] <= line["promise_mb"] + 0.001, (name, line["ledger_peak_mb"], line["promise_mb"])
PYTHON
}

# collect NAME...: the last line of each file, where there is one, into $result.
collect() {
  python3 - "$out" "$result" "$@" <<'PYTHON'
import json, pathlib, sys

out, result, *names = sys.argv[1:]
lines = {}
for name in names:
    path = pathlib.Path(out) / f"{name}.json"
    text = [line for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []
    if text:
        lines[name] = json.loads(text[-1])
json.dump(lines, open(result, "w"))
PYTHON
}

# Ends a part that cannot run here, with the reason.
skipped() {
  printf '%s' "$*" >"$reason"
  exit 77
}

# ---- the run --------------------------------------------------------------------------------------------

# record PART STATE SECONDS TEXT
record() {
  printf '%s\t%s\t%s\t%s\n' "$@" >>"$out/parts.tsv"
  printf '== %-13s %-8s %5ss  %s\n' "$@"
}

wanted() { [[ (-z $only || ,$only, == *,$1,*) && ,$skip, != *,$1,* ]]; }

run_part() {
  local name=$1 left limit start code=0
  log=$out/$name.log result=$out/$name.json reason=$out/$name.reason
  rm -f "$result" "$reason"
  if ! wanted "$name"; then record "$name" skipped 0 "not asked for"; return; fi
  left=$((deadline - $(date +%s)))
  limit=$((budget[$name] < left ? budget[$name] : left))
  if ((limit < 5)); then record "$name" 'no time' 0 "$minutes minutes are over"; return; fi
  start=$(date +%s)
  # A process of its own, so that a limit ends all that it started.
  export device only skip scale torch build out root log result reason
  # shellcheck disable=SC2016
  timeout --kill-after=5 "$limit" bash -c 'source "$0" --functions && "part_$1"' \
    "${BASH_SOURCE[0]}" "$name" >"$log" 2>&1 || code=$?
  local took=$(($(date +%s) - start))
  case $code in
    0) record "$name" passed "$took" "" ;;
    77) record "$name" skipped "$took" "$(<"$reason")" ;;
    124 | 137) record "$name" 'no time' "$took" "not done within $limit s" ;;
    *)
      record "$name" FAILED "$took" "exit code $code: $(tail -n 1 "$log")"
      failures=$((failures + 1))
      ;;
  esac
}

report() {
  python3 - "$out" "$device" <<'PYTHON'
import json, pathlib, subprocess, sys

out, device = pathlib.Path(sys.argv[1]), sys.argv[2]
def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return ""
parts = {}
for line in (out / "parts.tsv").read_text().splitlines():
    name, state, seconds, text = line.split("\t")
    parts[name] = {"state": state, "seconds": int(seconds), "text": text}
    if (out / f"{name}.json").exists():
        parts[name]["measured"] = json.loads((out / f"{name}.json").read_text())
report = {
    "device": device,
    "gpu": said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    "commit": said("git", "describe", "--always", "--dirty"),
    "date": said("date", "-u", "+%Y-%m-%dT%H:%M:%SZ"),
    "parts": parts,
}
(out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
missing = [name for name, part in parts.items() if part["state"] in ("skipped", "no time")]
print("Did not run: " + (", ".join(missing) or "nothing"))
print(f"Report: {out / 'report.json'}")
PYTHON
}

run_all() {
  local name
  parse "$@"
  mkdir -p "$out"
  rm -f "$out/parts.tsv"
  failures=0
  deadline=$(($(date +%s) + $(python3 -c "print(int(60 * $minutes))")))
  cd "$root"
  for name in "${parts[@]}"; do run_part "$name"; done
  report
  exit $((failures > 0))
}

case ${1:-} in
  --functions) ;;
  pack) pack ;;
  *) run_all "$@" ;;
esac
