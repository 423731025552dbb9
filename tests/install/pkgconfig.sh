#!/usr/bin/env bash
# pkgconfig.sh PREFIX LIBDIR shared|static SOURCE: builds and runs a C program with the
# flags that pkg-config gives.
set -euo pipefail
prefix=$1 libdir=$2 linkage=$3 source=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig

cp "$source" "$work/main.c"
cd "$work"
if [[ $linkage == static ]]; then
  # Without the shared library there, -lkvevict can only mean the archive.
  mkdir -p moved
  cp -R "$prefix"/. moved
  rm moved/"$libdir"/libkvevict.so*
  export PKG_CONFIG_PATH=$work/moved/$libdir/pkgconfig
  # The compiler looks there by itself.
  [[ -z ${LIBRARY_PATH:-} ]] || LIBRARY_PATH=$work/moved/$libdir
  read -ra flags <<<"$(pkg-config --static --cflags --libs kvevict)"
else
  read -ra flags <<<"$(pkg-config --cflags --libs kvevict)"
fi
cc -std=c99 -Wall -Wextra -pedantic -Werror main.c -o main "${flags[@]}"
LD_LIBRARY_PATH=$prefix/$libdir ./main

linked=$(readelf -d main | grep -c 'NEEDED.*libkvevict' || true)
[[ $linked == $([[ $linkage == shared ]] && echo 1 || echo 0) ]] ||
  { echo "not linked the $linkage way" && exit 1; }
