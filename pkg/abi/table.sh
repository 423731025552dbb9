#!/bin/sh
# table.sh HEADER: prints the table of what kvevict.h defines, see table.awk. Sizes,
# offsets and values are those of the C compiler CC.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
include=$(dirname "$(dirname "$1")")
awk -f "$(dirname "$0")/table.awk" "$1" >"$work/table.c"
${CC:-cc} -I"$include" -o "$work/table" "$work/table.c"
"$work/table"
