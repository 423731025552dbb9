#!/bin/sh
# table.sh HEADERS: prints the table of what the headers of a folder define, see table.awk.
# Sizes, offsets and values are those of the C compiler CC, whose programs run by RUN, if it
# is not for this machine.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -f "$(dirname "$0")/table.awk" "$1"/*.h >"$work/table.c"
${CC:-cc} -I"$(dirname "$1")" -o "$work/table" "$work/table.c"
${RUN:-} "$work/table"
