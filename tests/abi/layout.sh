#!/bin/sh
# layout.sh HEADERS: prints what a compiled program relies on in a folder's headers:
# sizes of structs, offsets and sizes of their fields, values of enums.
set -eu
table=$("$(dirname "$0")/../../pkg/abi/table.sh" "$1")
printf '%s\n' "$table" | awk -F '\t' '
  $1 == "value" || $2 == "KVEVICT_ABI_VERSION" { print $2, $3 }
  $1 == "struct" { print $2, $3; struct = $2 }
  $1 == "field" { print struct "." $2, $3, $4 }'
