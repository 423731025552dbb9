#!/usr/bin/env bash
# one_definition.sh FOLDER...: checks that objects there, compiled with -O0 -g1,
# agree on what they define together. For the linker, inline functions and variables
# of one name are one, whatever each object means by it. Compares line and size of
# functions, and the bytes of variables.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

find "$@" -name '*.o' | sort >"$folder/objects"
while read -r object; do
  # nm prints address, size, kind, name and line. A constructor or destructor can have
  # two names (C1 and C2) at one address, and nm knows the line of either.
  nm -l -S --defined-only "$object" | awk -v object="$object" '
    NF >= 4 && $3 ~ /^[WVu]$/ && $4 ~ /7kvevict/ {
      name = $4
      if (match(name, /[CD]1E/)) {
        name = substr(name, 1, RSTART) "2" substr(name, RSTART + 2)
      }
      what[name] = $3 == "W" ? "function" : "variable"
      size[name] = $2
      if ($3 == "W" && NF > 4) line[name] = $5
    }
    END {
      for (name in what) {
        print name, what[name], size[name], name in line ? line[name] : "-", object
      }
    }'
done <"$folder/objects" | sort >"$folder/symbols"
n_symbols=$(awk '{ print $1 }' "$folder/symbols" | uniq | wc -l)
if [[ ! -s $folder/symbols ]] || ! grep -q ' function [^ ]* [^ ]*:[0-9]' "$folder/symbols"; then
  echo "no inline functions, or no lines, in the objects of $*"
  exit 2
fi

# The bytes of variables that several objects have. A string lies elsewhere in each
# object, so a pointer to one is compared by its place in the variable.
awk '$2 == "variable" { print $1 }' "$folder/symbols" | uniq -d >"$folder/shared"
while read -r name; do
  awk -v name="$name" '$1 == name { print $5 }' "$folder/symbols" |
    while read -r object; do
      bytes=$(objdump -s -r -j ".rodata.$name" -j ".data.rel.ro.$name" \
        -j ".data.rel.ro.local.$name" -j ".data.$name" "$object" 2>/dev/null |
        tail -n +3 | sed 's/ \.rodata[^ ]*$/ string/' | md5sum)
      echo "$name variable ${bytes%% *} - $object"
    done
done <"$folder/shared" >"$folder/bytes"

awk '$2 == "function"' "$folder/symbols" | cat - "$folder/bytes" |
  awk '{
    what = $3 " " $4
    if (!($1 in first)) {
      first[$1] = what
      where[$1] = $5 " (" $4 ")"
    } else if (first[$1] != what && !($1 in told)) {
      told[$1] = 1
      print $1 ": " where[$1] " and " $5 " (" $4 ") differ"
    }
  }' | c++filt >"$folder/wrong"
cat "$folder/wrong"
echo "$n_symbols inline functions and variables, $(wc -l <"$folder/wrong") defined twice"
[[ ! -s $folder/wrong ]]
