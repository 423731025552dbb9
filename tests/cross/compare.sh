#!/usr/bin/env bash
# compare.sh NATIVE CROSS WHAT RUNNER...: programs of the build folder CROSS, run by
# RUNNER (wine, qemu-aarch64 ...), print what those of NATIVE print: keep lists and
# the text of the example engine. If WHAT is `all`, not `results`, also the demo's
# bytes and recalls, and error messages.
set -euo pipefail
native=$(realpath "$1") cross=$(realpath "$2") extent=$3
shift 3
runner=("$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# wine finds the library there.
export WINEPATH=Z:${cross//\//\\}
export LC_ALL=C.UTF-8 WINEDEBUG=${WINEDEBUG:--all} KVEVICT_TEST_SEED=1

suffix=
[[ ! -e $cross/tools/kvevict.exe ]] || suffix=.exe

# same WHAT FILTER PROGRAM [arguments...]: compares what FILTER leaves of the
# output, and the exit code.
same() {
  local what=$1 filter=$2 program=$3 side
  shift 3
  for side in native cross; do
    local command=("$native/$program")
    [[ $side == native ]] || command=("${runner[@]}" "$cross/$program$suffix")
    local status=0
    "${command[@]}" "$@" >out 2>err </dev/null || status=$?
    { echo "exit code $status" && "$filter" <out; } >"$side"
    [[ $status == 0 ]] || grep -v '^wine' err | sed 's/^.*kvevict: //' >>"$side" || true
  done
  diff --label native --label "${runner[*]} ${QEMU_CPU-}" native cross >difference || {
    echo "$what differs:" && head -n 20 difference && exit 1
  }
  echo "${QEMU_CPU:+$QEMU_CPU: }$what: $(wc -l <native) lines alike"
}
all() { cat; }
text() { tr -d '\r'; } # msvcrt writes it
keep_lists() { text | grep ', head ' | sort; }
no_times() { sed '/_ms"\|_per_s"/d'; }

for seed in 1 7 4000000000; do
  same "engine with seed $seed" text bindings/examples/engine/engine_c $seed
done
same 'keep lists of policies, dtypes and layouts' keep_lists tests/capi/capi_results -j1
[[ $extent == all ]] || exit 0
same 'demo' no_times tools/kvevict demo --json --tokens 512 --budget 128
same 'demo on a paged f16 cache' no_times tools/kvevict demo --json --tokens 512 \
  --budget 128 --cache paged --dtype f16
same 'plan' all tools/kvevict plan snapkv:budget=128
same 'a wrong budget' all tools/kvevict demo --budget -3
same 'a file that is not there' all tools/kvevict calibration ключ.pt
