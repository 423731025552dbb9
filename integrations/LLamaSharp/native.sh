#!/usr/bin/env bash
# native.sh BUILD OUT: the libraries that KvEvict.LLamaSharp carries, under the names by
# which they are looked for.
set -euo pipefail
build=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work" --component llamasharp --strip >/dev/null
mkdir -p "$out"
for library in "$work"/llamasharp/*; do
  soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  cp -L "$library" "$out/${soname:-${library##*/}}"
done
