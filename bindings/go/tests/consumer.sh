#!/usr/bin/env bash
# consumer.sh GO VERSION CACHE_PARENT PREFIX LIBDIR: a program of one's own gets the module
# from a proxy folder, finds an installed library by pkg-config, and needs no swig; linked with
# the shared library and as a static program.
set -euo pipefail
go=$1 version=$2 cache=$3 prefix=$4 libdir=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/app"
printf '#!/bin/sh\necho "swig was called" >&2\nexit 1\n' >"$work/bin/swig"
chmod +x "$work/bin/swig"
cp "$here/consumer/main.go" "$work/app"
export PATH=$work/bin:$PATH PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
export GOPROXY=file://$work/proxy GOFLAGS=-modcacherw
export GOCACHE=$cache/cache GOMODCACHE=$work/modules GOTOOLCHAIN=local CGO_ENABLED=1
export GOSUMDB=off
# go's cache does not know what the library's header contains.
CGO_CFLAGS="-O2 -g -DKVEVICT_HEADER=$(cksum <"$prefix/include/kvevict/kvevict.h" | cut -d ' ' -f 1)"
export CGO_CFLAGS
"$here/../package.sh" "$go" "$version" "$work/proxy"
cd "$work/app"
"$go" mod init consumer
"$go" get "kvevict.dev/kvevict/bindings/go@v$version"
"$go" build -o plain .
LD_LIBRARY_PATH=$prefix/$libdir ./plain
"$go" build -o static -tags kvevict_static -ldflags '-linkmode external -extldflags "-static"' .
./static
