#!/usr/bin/env bash
# consumer.sh proxy|replace GO VERSION CACHE_PARENT PREFIX LIBDIR: a user's program
# gets the module from a proxy folder, or from the source by the README's line,
# finds an installed library by pkg-config, and needs no swig. It links with the
# shared library, with the archive, and as a static program.
set -euo pipefail
from=$1 go=$2 version=$3 cache=$4 prefix=$5 libdir=$6
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/app"
printf '#!/bin/sh\necho "swig was called" >&2\nexit 1\n' >"$work/bin/swig"
chmod +x "$work/bin/swig"
cp "$here/consumer/main.go" "$work/app"
export PATH=$work/bin:$PATH PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
export GOFLAGS=-modcacherw
export GOCACHE=$cache/cache GOMODCACHE=$work/modules GOTOOLCHAIN=local CGO_ENABLED=1
export GOSUMDB=off
# go's cache does not know what the library's headers contain.
CGO_CFLAGS="-O2 -g -DKVEVICT_HEADERS=$(cat "$prefix"/include/kvevict/*.h | cksum | cut -d ' ' -f 1)"
export CGO_CFLAGS
cd "$work/app"
"$go" mod init consumer
if [[ $from == proxy ]]; then
  "$here/../package.sh" "$go" "$version" "$work/proxy"
  export GOPROXY=file://$work/proxy
  "$go" get "kvevict.dev/kvevict/bindings/go@v$version"
else
  export GOPROXY=off
  grep '^replace ' "$here/../README.md" | sed "s|/path/to/kvevict/bindings/go|$here/..|" >>go.mod
  "$go" get kvevict.dev/kvevict/bindings/go
fi

needs() { # PROGRAM: the libraries that it does not run without
  readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}
"$go" build -o shared .
needs shared | grep -q '^libkvevict\.so' || { echo "the shared library is not linked" && exit 1; }
LD_LIBRARY_PATH=$prefix/$libdir ./shared
"$go" build -o archive -tags kvevict_static .
! needs archive | grep libkvevict || { echo "linked in spite of -tags kvevict_static" && exit 1; }
./archive
"$go" build -o static -tags kvevict_static -ldflags '-linkmode external -extldflags "-static"' .
[[ -z $(needs static) ]] || { echo "not static: $(needs static)" && exit 1; }
./static
