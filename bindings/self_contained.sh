#!/usr/bin/env bash
# self_contained.sh LIBRARY PATTERN: the native library of a managed package needs
# only the C library, offers only names that match PATTERN, and is hardened.
set -euo pipefail
export LC_ALL=C
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
  case $library in
    libc.so.6 | libm.so.6 | ld-linux*) ;;
    *) echo "needs $library" && exit 1 ;;
  esac
done
names=$(nm --dynamic --defined-only --format=just-symbols "$1")
others=$(grep -Ev "^($2)\$" <<<"$names" || true)
[[ -z $others ]] || { echo "offers $others" && exit 1; }
"$(dirname "${BASH_SOURCE[0]}")/../pkg/hardened.sh" "$1"
echo "needs:" $needed
echo "offers $(wc -l <<<"$names") functions; glibc $(objdump -T "$1" |
  grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)"
