#!/usr/bin/env bash
# complete.sh KERNELS TEST...: checks that one of these tests runs each kernel file
# of the folder KERNELS.
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
