#!/usr/bin/env bash
# compare.sh C_ENGINE SOURCE COMMAND...: an engine of another language prints what the C
# engine prints, and its source stays under 150 lines.
set -euo pipefail
reference=$1 source=$2
shift 2
lines=$(wc -l <"$source")
((lines < 150)) || { echo "$source has $lines lines" && exit 1; }
for seed in 1 7 4000000000; do
  diff --label C --label "$1" <("$reference" $seed) <("$@" $seed)
  "$@" $seed | tail -n 1
done
