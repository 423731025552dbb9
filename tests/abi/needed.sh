#!/bin/sh
# needed.sh LIBRARY SONAME: the library has this SONAME and needs only the C and C++
# runtime.
set -eu
dynamic=$(LC_ALL=C readelf -d "$1")
printf '%s\n' "$dynamic" | grep -F "Library soname: [$2]" || {
  echo "SONAME is not $2"
  exit 1
}
needed=$(printf '%s\n' "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ]
for library in $needed; do
  case $library in
    libc.so.6 | libm.so.6 | libstdc++.so.6 | libgcc_s.so.1 | ld-linux*) ;;
    *)
      echo "unexpected dependency: $library"
      exit 1
      ;;
  esac
done
echo "needs:" $needed
