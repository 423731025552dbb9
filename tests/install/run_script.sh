#!/usr/bin/env bash
# run_script.sh SOURCE: tests ./run with stand-ins for apt, CMake and ctest that
# write down how they are called.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{project,bin,highway,nvrtc,llama,server}
cp -R "$1/run" "$1/pkg" "$work/project"
cd "$work/project"
export KVEVICT_HIGHWAY_SOURCE=$work/highway KVEVICT_NVRTC_DIR=$work/nvrtc CALLS=$work/calls
export KVEVICT_LLAMA_DIR=$work/llama KVEVICT_LLAMA_SERVER_DIR=$work/server
export PATH=$work/bin:$PATH

# stub NAME: a program that writes its call down, prints to stdout, and does what
# stdin says.
stub() {
  { printf '#!/bin/bash\necho "%s $*" >>"$CALLS"\necho "%s speaks"\n' "$1" "$1" && cat; } \
    >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
stub apt-get </dev/null
stub dpkg-query <<'STUB'
printf 'installed %s\n' "$@"
STUB
stub cmake <<'STUB'
[[ $1 == --build ]] || touch build/release/build.ninja
STUB
stub ctest <<'STUB'
while [[ $1 != --output-junit ]]; do shift; done
printf '<testcase name="a" status="run">\n</testcase>\n' >"$2"
STUB
mkdir -p build/release/{tools,tests/bench,integrations/llama.cpp}
for program in tools/kvevict tests/bench/kvevict_bench \
  integrations/llama.cpp/kvevict-llama-cli; do
  printf '#!/bin/sh\necho "{$*}"\n' >build/release/$program
  chmod +x build/release/$program
done

fail() {
  echo "wrong: $*"
  cat "$CALLS"
  exit 1
}
# The build step of each call.
steps() {
  sed -n 's/^cmake --build.*/build/p; s/^cmake .*/configure/p; s/^ctest.*/ctest/p' "$CALLS" |
    paste -sd ' '
}
rm -f "$CALLS"

# stdout has only the document.
for verb in demo bench; do
  [[ $(./run $verb --json 2>/dev/null) == "{"*"--json}" ]] || fail "./run $verb --json"
done

# The demo leaves out the tests while what they need is missing.
for status in 1 0; do
  stub pkg-config <<<"exit $status"
  rm -f "$CALLS"
  ./run demo >/dev/null 2>&1
  ! grep '^dpkg-query.*criterion' "$CALLS" || fail "./run demo needs the tests' packages"
  [[ $status == "$(grep -c 'BUILD_TESTS=ON.*BUILD_TESTS=OFF' "$CALLS")" ]] ||
    fail "./run demo with pkg-config's status $status"
done
rm -f "$work/bin/pkg-config" "$CALLS"

# Files are named from the folder in which the user stands.
sed -i 's/{/$PWD {/' build/release/integrations/llama.cpp/kvevict-llama-cli
[[ $(cd pkg && ../run llama -m a.gguf 2>/dev/null) == \
  "$PWD/pkg {-m a.gguf}" ]] || fail "./run llama"

# Without names eval takes what ../shared has, and says what it lacks.
! ./run eval -f a.txt >"$work/log" 2>&1 || fail "./run eval without a model"
grep -q "eval needs -m model.gguf" "$work/log" || fail "./run eval: $(cat "$work/log")"
mkdir -p ../shared/models ../shared/texts
printf 12 >../shared/models/a.gguf && printf 123 >../shared/models/b.gguf
! ./run eval >"$work/log" 2>&1 || fail "./run eval without a text"
grep -q "eval needs -f book.txt" "$work/log" || fail "./run eval: $(cat "$work/log")"
head -c 200000 /dev/zero >../shared/texts/long.txt && touch ../shared/texts/short.txt
[[ $(./run eval --fresh 2>/dev/null) == *"{eval -m $PWD/../shared/models/b.gguf \
-f $PWD/../shared/texts/long.txt --fresh}" ]] || fail "./run eval"
[[ $(./run eval -m x -f y 2>/dev/null) == *"{eval -m x -f y}" ]] || fail "./run eval -m -f"

# What has been installed since the folder was configured is found before the build, and
# nothing is configured after it.
rm "$CALLS"
[[ $(./run test 2>&1 | tail -n 1) == "1 passed, 0 failed, 0 skipped" ]] || fail "./run test"
[[ $(steps) == "configure build ctest" ]] || fail "./run test: $(steps)"
grep -q "^cmake .*KVEVICT_LLAMA_DIR:STRING=$work/llama" "$CALLS" || fail "no llama.cpp"
grep -q "^cmake .*KVEVICT_LLAMA_SERVER_DIR:STRING=$work/server" "$CALLS" ||
  fail "no llama-server"
grep -q "^cmake .*KVEVICT_NVRTC_DIR:STRING=$work/nvrtc" "$CALLS" || fail "no NVRTC"
grep -q '^cmake .*KVEVICT_DEEP_TESTS=OFF' "$CALLS" || fail "deep tests every day"

rm "$CALLS"
./run check deep >"$work/log" 2>&1 || fail "./run check deep: $(cat "$work/log")"
[[ $(steps) == "configure build ctest" ]] || fail "./run check deep: $(steps)"
grep -q '^cmake .*KVEVICT_DEEP_TESTS=ON' "$CALLS" || fail "no deep tests"

# A step that left no results has failed.
summary=$(pkg/summarize_tests.sh build/results/{test,deep,gone}.xml | tail -n 1) || true
[[ $summary == "2 passed, 1 failed, 0 skipped" ]] || fail "two results of three: $summary"

for arguments in no-such-verb "no-such-verb --help" "check no-such-step"; do
  # shellcheck disable=SC2086 # words
  ! ./run $arguments >"$work/log" 2>&1 || fail "./run $arguments succeeds"
  grep -q "no-such" "$work/log" || fail "./run $arguments: $(cat "$work/log")"
done
./run --help | grep -q demo
echo "fine"
