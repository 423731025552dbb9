#!/usr/bin/env bash
# symbols.sh LIBRARY HEADERS: prints the names that a shared (with their version node) or
# static library offers; fails unless they are exactly the functions that the headers of
# the folder declare.
set -euo pipefail
export LC_ALL=C

exported() {
  local dynamic=--extern-only
  [[ $1 == *.a ]] || dynamic=--dynamic
  nm $dynamic --defined-only --with-symbol-versions "$1" |
    awk 'NF == 3 && $2 != "A" { print $3 }' | sort
}
# The word before the first parenthesis after KVEVICT_API, perhaps a line later.
declared() {
  awk '/^KVEVICT_API/ { open = 1 }
    open && match($0, /kvevict_[a-z0-9_]+\(/) {
      print substr($0, RSTART, RLENGTH - 1); open = 0
    }' "$1"/*.h | sort
}

exported "$1"
diff -u --label exported --label declared \
  <(exported "$1" | sed 's/@.*//') <(declared "$2") >&2
