#!/bin/sh
# generate.sh LANGUAGE FOLDER [options of SWIG...]: makes all that a binding has from
# the headers, core/policy/params.inc and core/dtypes.inc: enums, structs, constants and the properties of
# policies by table/, calls by SWIG. FOLDER is new afterwards, so that a type without a
# typemap (a file SWIGTYPE_*) is noticed. SWIG and CC name programs, RUN one that runs what CC
# compiles, INCLUDE the folder of kvevict/*.h, absolute.
set -eu
language=$1 out=$2
shift 2
cd "$(dirname "$0")/.."
include=${INCLUDE:-$PWD/capi/include}
rm -rf "$out"
mkdir -p "$out/tests/dev/kvevict" # of C#; of Java in its package
pkg/abi/table.sh "$include/kvevict" >"$out/table"
# Lists the functions, except for those that no reader of a message could have called.
grep -ohE '\bkvevict_[a-z0-9_]+\(' "$include"/kvevict/*.h | LC_ALL=C sort -u | tr -d '(' |
  grep -vE '_(create|destroy)$' | sed 's/^/call\t/' >>"$out/table"
${CC:-cc} -I. -o "$out/rows" bindings/table/rows.c
${RUN:-} "$out/rows" >>"$out/table"
awk -v out="$out" -f bindings/table/names.awk -f "bindings/table/$language.awk" "$out/table"
[ "$language" != web ] || exit 0 # it calls by name
"${SWIG:-swig}" "-$language" -Wall -Werror -Ibindings -I"$include" -I"$out" "$@" \
  -outdir "$out" -o "$out/wrap.c" bindings/kvevict.i
for untyped in "$out"/SWIGTYPE_*; do
  [ ! -e "$untyped" ] || { echo "a type without a typemap: $untyped"; exit 1; }
done
