#!/usr/bin/env bash
# structs.sh LAYOUT STRUCTS: every struct of the golden layout table that begins
# with its size has a first size in the list, and that is one of its sizes.
set -euo pipefail
diff <(sed -nE 's/^(kvevict_[a-z_]+)\.struct_size 0 4$/\1/p' "$1" | sort) \
  <(sed -nE 's/^KVEVICT_STRUCT\(([a-z_]+), [0-9]+\)$/\1/p' "$2" | sort)
