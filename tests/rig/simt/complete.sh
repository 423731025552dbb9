#!/usr/bin/env bash
# complete.sh KERNELS TESTS MUTATED...: every kernel file of the folder KERNELS is
# run by some test of the folder TESTS, and every file with waits is among those
# that a mutation test takes the waits out of.
set -euo pipefail
kernels=$1 tests=$2
shift 2
. "$(dirname "${BASH_SOURCE[0]}")/waits.sh"

n_wrong=0
wrong() {
  echo "$*"
  n_wrong=$((n_wrong + 1))
}

for file in "$kernels"/*.cu; do
  grep -rqF "#include \"cuda/kernels/${file##*/}\"" "$tests" ||
    wrong "${file##*/}: no test runs it on the CPU"
done
for file in "$kernels"/*.cu "$kernels"/*.cuh; do
  # There they are defined.
  [[ ${file##*/} != device.cuh ]] || continue
  [[ -z $(list_waits "$file") || " $* " == *" $file "* ]] ||
    wrong "${file##*/}: no mutation test takes its waits out"
done
echo "$n_wrong kernel files without a test"
[[ $n_wrong == 0 ]]
