#!/usr/bin/env bash
# refuses.sh: what the table of the header cannot hold is an error, not left out.
set -euo pipefail
table=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../pkg/abi" && pwd)/table.awk
refuses() { # reason line...
  local reason=$1 message
  shift
  if message=$(printf '%s\n' "$@" | awk -f "$table" 2>&1 >/dev/null); then
    echo "takes: $*" && exit 1
  fi
  grep -F -- "$reason" <<<"$message" || { echo "not $reason: $message" && exit 1; }
}
refuses "no documentation" "enum kvevict_e KVEVICT_INT32 {" "  /** A. */" "  KVEVICT_A = 0" "};"
refuses "A has no documentation" "/** E. */" "enum kvevict_e KVEVICT_INT32 {" "  KVEVICT_A = 0" "};"
refuses "not a value" "/** E. */" "enum kvevict_e KVEVICT_INT32 {" "  /** A. */" "  KVEVICT_A," "};"
refuses "not a field" "typedef struct kvevict_s {" "  uint32_t bit : 1;" "} kvevict_s;"
refuses "not a field" "typedef struct kvevict_s {" "  void (*call)(int);" "} kvevict_s;"
refuses "not a field" "typedef struct kvevict_s {" "  uint32_t a, b;" "} kvevict_s;"
refuses "not a type" "typedef union kvevict_u {" "  uint32_t a;" "} kvevict_u;"
refuses "not understood" "struct kvevict_s {" "  uint32_t a;" "};"
refuses "not a number" "#define KVEVICT_HALF 0.5"
