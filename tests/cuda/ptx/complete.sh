#!/usr/bin/env bash
# complete.sh KERNELS TEST...: checks that one of these tests runs each kernel file of the
# folder KERNELS whose threads wait for each other or share memory, itself or by what it
# includes. Tests of the doors run the others.
set -euo pipefail
kernels=$1
shift
n_wrong=0
for file in "$kernels"/*.cu; do
  mapfile -t includes < <(sed -n 's/^#include "\([a-z0-9_]*\.cuh\)"$/\1/p' "$file" | grep -vx device.cuh)
  grep -qE 'BlockSync|BlockAny|WarpSync|KV_SHARED|StoreRelease|CopyAsync' \
    "$file" "${includes[@]/#/$kernels/}" || continue
  grep -qF "#include \"cuda/kernels/${file##*/}\"" "$@" && continue
  echo "${file##*/}: no test runs it"
  n_wrong=$((n_wrong + 1))
done
echo "$n_wrong kernel files without a test"
[[ $n_wrong == 0 ]]
