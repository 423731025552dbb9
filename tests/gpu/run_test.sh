#!/usr/bin/env bash
# run_test.sh PROGRAM RUN.SH MOCK_LIBCUDA NVRTC_DIR: checks run.sh with parts
# that fail and without a GPU, and that the program leaves JSON behind.
set -uo pipefail
program=$1 run=$2 mock=$3 nvrtc=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
n_wrong=0

# expect TEXT command...: the command succeeds
expect() {
  local what=$1
  shift
  "$@" >/dev/null 2>&1 && return
  echo "wrong: $what"
  n_wrong=$((n_wrong + 1))
}

# go STATUS run.sh's options...: runs it, output in $folder/log
go() {
  local wanted=$1 status=0
  shift
  "$folder/run.sh" "$@" >"$folder/log" 2>&1 || status=$?
  expect "run.sh $* ends with $status, not $wanted: $(cat "$folder/log")" \
    test "$status" == "$wanted"
}
says() { expect "the output does not say: $1" grep -qF -- "$1" "$folder/log"; }

cp "$run" "$folder/run.sh"
ln -s "$program" "$folder/kvevict_gpu_test"
if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  go 2
  says "libcuda.so.1: cannot open"
  expect "the reason comes once" \
    test "$(grep -c 'cannot open' "$folder/log")" == 1
fi
go 2 --only timings
says "rows checks torch compiler sanitizers"
go 2 --against "$folder/no-library.so"
says "no-library.so: no such library"

# One part of this program crashes, and one hangs.
rm "$folder/kvevict_gpu_test"
cat >"$folder/kvevict_gpu_test" <<'PROGRAM'
#!/usr/bin/env bash
json= only=
while [[ $# -gt 0 ]]; do
  case $1 in
    --json) json=$2 ;;
    --only) only=$2 ;;
    --list) printf '%s\n' doors evictions graphs random; exit ;;
  esac
  shift
done
echo "part $only of a GPU, sm_80"
[[ $only != evictions ]] || kill -SEGV $$
[[ $only != graphs ]] || exit 1
[[ -z $json ]] || echo '{}' >"$json"
PROGRAM
chmod +x "$folder/kvevict_gpu_test"
go 1 --only checks "$folder/out"
says "FAILED: evictions (exit 139) graphs (exit 1)"
for part in doors random; do
  expect "$part was not run, or its result is lost" \
    test -s "$folder/out/$part.json"
done
expect "outputs are kept" grep -q "part evictions" "$folder/out/evictions.txt"

# A part that would begin too late is left out, and named.
KVEVICT_GPU_SECONDS=0 go 0 --only checks "$folder/late"
says "not run, no time left (run.sh --only PART): checks"

printf '#!/bin/sh\necho "sm_$1"; exit 1\n' >"$folder/kvevict_gates"
chmod +x "$folder/kvevict_gates"
go 1 --only compiler "$folder/out"
says "sm_80"
says "FAILED: compiler (exit 1)"

# Runs the program itself with the mock driver.
if [[ -n $nvrtc ]]; then
  mkdir "$folder/lib"
  ln -s "$mock" "$folder/lib/libcuda.so.1"
  status=0
  LD_LIBRARY_PATH=$folder/lib:$nvrtc "$program" --small --only acceptance \
    --json "$folder/small.json" >"$folder/log" 2>&1 || status=$?
  expect "the program fails: $(cat "$folder/log")" test "$status" == 0
  says "3 passed, 0 failed, 0 skipped"
  status=0
  LD_LIBRARY_PATH=$folder/lib:$nvrtc "$program" --small --rows machine \
    --json "$folder/rows.json" >"$folder/log" 2>&1 || status=$?
  expect "the rows fail: $(cat "$folder/log")" test "$status" == 0
  expect "the JSON has rows with times" \
    test "$(grep -cE '^ +"ms": [0-9.]+,?$' "$folder/rows.json")" == 4
  # A small machine has no interpreter of JSON.
  count() { grep -cE "$1" "$folder/small.json"; }
  expect "the JSON has three checks that passed" \
    test "$(count '^  +"passed": true,?$') $(count '"passed": false')" == "3 0"
  expect "the JSON has a seed" test "$(count '^ "seed": [1-9][0-9]*,?$')" == 1
  expect "the JSON is one object" \
    test "$(head -c 1 "$folder/small.json") $(tail -n 1 "$folder/small.json")" == "{ }"
else
  echo "skipped: no libnvrtc for the program itself"
fi
[[ $n_wrong == 0 ]]
