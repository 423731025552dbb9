#!/usr/bin/env bash
# arm64.sh BUILD: checks libkvevict.so and its objects. The library offers what
# pkg/abi says, needs no newer system than on x86-64, and has no SVE instruction
# outside of the code for SVE. The loops that scoring spends its time in have no
# more instructions than docs/platforms.md says.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath "$1")
export LC_ALL=C
dump=aarch64-linux-gnu-objdump
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
library=$build/libkvevict.so

"$source/tests/abi/symbols.sh" "$library" "$source/capi/include/kvevict" >"$work/symbols"
diff "$source/pkg/abi/kvevict.symbols" "$work/symbols"
echo "offers what it should"

needed=$($dump -p "$library" | sed -n 's/^ *NEEDED *//p')
others=$(grep -vxE 'lib(stdc\+\+|m|gcc_s|c)\.so\..*|ld-linux-aarch64\.so\.1' <<<"$needed" || true)
[[ -z $others ]] || { echo "needs $others" && exit 1; }
for floor in GLIBC_2.34 GLIBCXX_3.4.30; do
  newest=$($dump -T "$library" | grep -o "\b${floor%_*}_[0-9.]*" | sort -Vu | tail -n 1)
  printf '%s\n' "$newest" "$floor" | sort -VC || { echo "needs $newest" && exit 1; }
  echo "needs $newest, at most $floor"
done

# Vectors z0 .. z31 and predicates p0 .. p15.
$dump -d --no-show-raw-insn -C "$library" | awk '
  /^[0-9a-f]+ <.*>:$/ { name = $0; is_sve = /N_SVE/ }
  /^ *[0-9a-f]+:\t/ && !is_sve && /[\t ,{](z[0-9]+\.|p[0-9]+[.\/])/ { print name, $0; ++n }
  END { exit n > 0 }' | head || { echo "code for SVE outside of its targets" && exit 1; }
echo "no code for SVE outside of its targets"

"$source/tests/cross/instructions.sh" "$build"
