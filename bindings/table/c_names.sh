#!/usr/bin/env bash
# c_names.sh WORD...: fails if a binding's documentation, on the standard input, has
# names of C beside these words. Letters with an index, as v_t, belong to formulas.
set -euo pipefail
words=$(printf '%s\n' u4_halves sm_90 compute_80 size_t "(DType)?[qQ][48]_0" "$@")
found=$(grep -noE '[A-Za-z0-9]+_[A-Za-z0-9_]+|\bKv(Sequence|Plan|Context|Policy|View)[A-Z][A-Za-z]+\(\)|\bNULL\b' |
  grep -vE ':[a-z]_[a-z0-9]$' || true)
wrong=$(grep -vE ":($(tr '\n' '|' <<<"$words" | sed 's/|*$//'))\$" <<<"$found" || true)
[[ -z $wrong ]] || { echo "names of C, by lines:" && echo "$wrong" && exit 1; }
