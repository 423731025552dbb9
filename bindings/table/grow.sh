#!/usr/bin/env bash
# grow.sh LANGUAGE COMMAND...: the headers grow by fields, a value of an enum, and
# grown.inc. Everything made from them is right, and the binding still builds by
# COMMAND. GROWN is the folder of what was made, INCLUDE that of the headers.
set -euo pipefail
language=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
export GROWN=$work/generated INCLUDE=$work/include
mkdir -p "$INCLUDE/kvevict"
for header in "$here"/../../capi/include/kvevict/*.h; do
  last=0
  [[ $header != */kvevict.h ]] ||
    last=$(grep -n '^#ifdef __cplusplus$' "$header" | tail -1 | cut -d : -f 1)
  awk -v last="$last" -v grown="$here/grown.inc" '
    /^\} kvevict_resolved_policy;$/ { print "  uint32_t grown_field;\n  uint32_t grown_room;" }
    /^\} kvevict_evict_options;$/ {
      print "  /** How many are looked at, as with n_shared_blocks. */\n  uint32_t n_probes;"
      print "  uint32_t probe_first; /**< 1: before the others; 0: after them. */"
      print "  kvevict_merge probe_merge; /**< Not KVEVICT_MERGE_PIVOT. */"
      print "  float probe; /**< 0: 1. */"
    }
    NR == last { while ((getline line < grown) > 0) print line }
    { print }
    /^enum kvevict_reason / { print "  /** It grew. */\n  KVEVICT_REASON_GROWN = 900," }
  ' "$header" >"$INCLUDE/kvevict/${header##*/}"
done

options=()
case $language in
  csharp) options=(-namespace KvEvict -dllimport kvevict_csharp
    -DSWIG_CSHARP_NO_EXCEPTION_HELPER -DSWIG_CSHARP_NO_STRING_HELPER
    -DSWIG_CSHARP_NO_IMCLASS_STATIC_CONSTRUCTOR) ;;
  java) options=(-package dev.kvevict) ;;
  go) options=(-cgo -intgosize 64 -module native -package native) ;;
esac
"$here/../generate.sh" "$language" "$GROWN" "${options[@]}"

# Each line has a file and words of the result, in which any white space is a single space.
while read -r file words; do
  tr -s ' \t\n' ' ' <"$GROWN/$file" | grep -qF -- "$words" ||
    { echo "$file has not: $words" && exit 1; }
done <"$here/grown_$language.txt"
"$@"
