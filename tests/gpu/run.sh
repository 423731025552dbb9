#!/usr/bin/env bash
# Runs the GPU tests on a machine with a GPU, in ten minutes:
#
#   ./run build --gpu-test     where kvevict is built: makes the folder dist/gpu-test
#   dist/gpu-test/run.sh       where the GPU is: needs the driver and libnvrtc alone
#
# run.sh [--only PART]... [--rows TEXT] [--against LIBKVEVICT.SO] [OUT]: results go to
# OUT (default: results/ beside this script), each part's JSON and output as soon as
# they are there. Parts, in this order: rows (the table of docs/gpu-measurements.md;
# --rows: only those with TEXT in their group or name; --against: another build's calls
# take turns with this one's), checks, torch (if PyTorch sees the GPU), compiler
# (kvevict_gates with the libnvrtc there), sanitizers (if compute-sanitizer is there). A
# part that fails or hangs does not keep the others from running; one that would begin
# after KVEVICT_GPU_SECONDS (590) is named and left out. Exits with 0 if nothing failed,
# with 2 if there is no usable GPU.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly parts='rows checks torch compiler sanitizers'
readonly deadline=${KVEVICT_GPU_SECONDS:-590}

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 2
}

only=() rows='' against=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --only)
      [[ " $parts " == *" ${2:-?} "* ]] || fail "--only ${2:-}: one of $parts"
      only+=("$2")
      ;;
    --rows) rows=${2:-} ;;
    --against)
      [[ -f ${2:-} ]] || fail "--against ${2:-}: no such library"
      against=(--against "$(realpath "$2")")
      ;;
    *) fail "$1: no such option" ;;
  esac
  shift
  shift || fail "an option wants a value"
done
out=${1:-$here/results}
mkdir -p "$out" || exit 2
program=$here/kvevict_gpu_test
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
failed=() late=()
# Whether the part is to run, and there is time for it.
wanted() {
  [[ ${#only[@]} == 0 || " ${only[*]} " == *" $1 "* ]] || return 1
  ((SECONDS < deadline)) && return
  late+=("$1")
  return 1
}

# within SECONDS command...: runs it for at most that long, or for what is left in all.
within() {
  local left=$((deadline - SECONDS)) seconds=$1
  shift
  if ((left <= 0)); then
    echo "no time left"
    return 124
  fi
  timeout -k 5 "$((seconds < left ? seconds : left))" "$@"
}

# PyTorch brings a libnvrtc that the system does not find; takes the newest of them.
libnvrtc=()
if [[ $(ldconfig -p 2>/dev/null) != *libnvrtc.so.1* ]] &&
  ! compgen -G '/usr/local/cuda/lib64/libnvrtc.so.1*' >/dev/null; then
  found=$(python3 -c 'import nvidia; print(nvidia.__path__[0])' 2>/dev/null |
    xargs -r -I{} find {} -name 'libnvrtc.so.1[123]' -printf '%f %p\n' |
    sort -V | tail -n 1)
  [[ -z $found ]] || libnvrtc=(--libnvrtc "${found#* }")
fi
say "libnvrtc: ${libnvrtc[1]:-as the system finds it}"
timeout 30 nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total \
  --format=csv,noheader 2>/dev/null || say "no nvidia-smi here"
gpu=$(timeout -k 5 60 "$program" "${libnvrtc[@]}" --no-checks 2>&1) ||
  fail "no GPU that can be used: ${gpu#kvevict_gpu_test: }"

# test_program NAME SECONDS options...: NAME.json and NAME.txt in $out
test_program() {
  local name=$1 seconds=$2 status=0
  shift 2
  say "$name"
  within "$seconds" "$program" "${libnvrtc[@]}" --kernel-cache "$cache" \
    --json "$out/$name.json" "$@" 2>&1 | tee "$out/$name.txt" || status=$?
  [[ $status == 0 ]] || failed+=("$name (exit $status)")
}

if wanted rows; then
  test_program rows 300 --rows "$rows" "${against[@]}" \
    --seconds "$((deadline - SECONDS < 270 ? deadline - SECONDS : 270))"
fi
if wanted checks; then
  mapfile -t checks < <("$program" --list)
  say "checks, side by side: ${checks[*]}"
  declare -A running
  for part in "${checks[@]}"; do
    within 170 "$program" "${libnvrtc[@]}" --kernel-cache "$cache" \
      --json "$out/$part.json" --only "$part" >"$out/$part.txt" 2>&1 &
    running[$part]=$!
  done
  for part in "${checks[@]}"; do
    status=0
    wait "${running[$part]}" || status=$?
    [[ $status == 0 ]] || failed+=("$part (exit $status)")
    say "$part: $(tail -n 1 "$out/$part.txt")"
    grep -B 5 '^\[FAIL\]' "$out/$part.txt"
    grep '^\[skip\]' "$out/$part.txt"
  done
fi

if wanted torch; then
  if timeout 60 python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
    2>/dev/null; then
    say "the same work in PyTorch"
    status=0
    within 100 python3 "$here/torch_side.py" --json "$out/torch.json" 2>&1 |
      tee "$out/torch.txt" || status=$?
    if [[ $status == 124 || $status == 137 ]]; then
      say "torch ran out of time: what it has measured is in torch.json"
    elif [[ $status != 0 ]]; then
      failed+=("torch (exit $status)")
    fi
  else
    say "torch: skipped, no PyTorch with CUDA here"
  fi
fi

if wanted compiler && [[ $gpu =~ sm_([0-9]+) ]]; then
  say "compiler"
  KVEVICT_NVRTC_DIR=${libnvrtc[1]:+$(dirname "${libnvrtc[1]}")} within 90 \
    "$here/kvevict_gates" "${BASH_REMATCH[1]}" >"$out/compiler.txt" 2>&1
  status=$?
  tail -n 2 "$out/compiler.txt"
  [[ $status == 0 || $status == 77 ]] || failed+=("compiler (exit $status)")
fi

if wanted sanitizers; then
  sanitizer=$(command -v compute-sanitizer ||
    ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [[ -n $sanitizer ]]; then
    seed=$(date +%s) # same models: the first run compiles for all
    test_program small 90 --small --seed "$seed"
    mapfile -t checks < <("$program" --list)
    tools=(memcheck racecheck synccheck)
    say "compute-sanitizer, small shapes, side by side: ${tools[*]}"
    declare -A watched
    for tool in "${tools[@]}"; do
      for part in "${checks[@]}"; do
        # The program judges calls that fail.
        within 220 "$sanitizer" --tool "$tool" --error-exitcode 9 \
          --report-api-errors no \
          "$program" "${libnvrtc[@]}" --small --seed "$seed" \
          --only "$part" --kernel-cache "$cache" >"$out/$tool.$part.txt" 2>&1 &
        watched[$tool.$part]=$!
      done
    done
    for tool in "${tools[@]}"; do
      for part in "${checks[@]}"; do
        status=0
        wait "${watched[$tool.$part]}" || status=$?
        case $status in
          0) ;;
          9)
            failed+=("$tool of $part")
            grep -A 2 '^=* Error' "$out/$tool.$part.txt" | sort | uniq -c |
              sort -rn | head -n 12
            ;;
          124 | 137) say "$tool of $part ran out of time: says nothing" ;;
          *) say "$tool of $part could not run here (exit $status)" ;;
        esac
      done
      say "$tool: $(cat "$out/$tool".*.txt | grep -c '^\[pass\]') checks watched"
    done
  else
    say "no compute-sanitizer here"
  fi
fi

if [[ ${#late[@]} -gt 0 ]]; then
  say "not run, no time left (run.sh --only PART): ${late[*]}"
fi
if [[ ${#failed[@]} -gt 0 ]]; then
  say "FAILED: ${failed[*]}"
  exit 1
fi
say "passed; results in $out"
