#!/usr/bin/env bash
# program.sh BENCH: tests the benchmark as its user sees it.
set -euo pipefail
bench=$1
fail() {
  echo "$*" >&2
  exit 1
}

# The answer to an unknown target lists the targets; the last one can be asked for.
said=$("$bench" --simd none 2>&1) && fail "--simd none is taken"
[[ $said == *'simd_target "none" is not one of '* ]] || fail "$said"
last=${said##*[, ]}
"$bench" --smoke --json --filter limits --simd "$last" | grep "\"simd\":\"$last\"" ||
  fail "--simd $last is not what runs"

said=$("$bench" --smoke --filter limits 2>&1 >/dev/full) && fail "a full disk is success"
[[ $said == *'standard output: No space left on device' ]] || fail "$said"

said=$("$bench" --repetitions 0 2>&1) && fail "--repetitions 0 is taken"
[[ $said == *"'0' is not a whole number from 1 to 1000"* ]] || fail "$said"
