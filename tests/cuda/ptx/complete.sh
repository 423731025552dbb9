#!/usr/bin/env bash
# complete.sh KERNELS TEST...: each kernel file of the folder KERNELS is run by one of
# these tests.
set -euo pipefail
kernels=$1
shift
n_wrong=0
for file in "$kernels"/*.cu; do
  grep -qF "#include \"cuda/kernels/${file##*/}\"" "$@" && continue
  echo "${file##*/}: no test runs it"
  n_wrong=$((n_wrong + 1))
done
echo "$n_wrong kernel files without a test"
[[ $n_wrong == 0 ]]
