#!/usr/bin/env bash
# go.sh GO CACHE_PARENT PKGCONFIG_DIR LIBRARY_DIR ARGUMENTS...: runs go against the library that
# a pkg-config folder names.
set -euo pipefail
go=$1
export GOCACHE=$2/cache GOMODCACHE=$2/modules PKG_CONFIG_PATH=$3 LD_LIBRARY_PATH=$4${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export GOPROXY=off GOTOOLCHAIN=local GOFLAGS=-modcacherw CGO_ENABLED=1
shift 4
# go's cache does not know what the library's headers contain.
headers=$(pkg-config --cflags-only-I kvevict | sed 's/^-I//; s/ .*//')/kvevict
CGO_CFLAGS="-O2 -g -DKVEVICT_HEADERS=$(cat "$headers"/*.h | cksum | cut -d ' ' -f 1)"
export CGO_CFLAGS
exec "$go" "$@"
