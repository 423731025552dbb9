#!/usr/bin/env bash
# package.sh GO VERSION OUT: the module as the GOPROXY protocol serves it:
# GOPROXY=file://OUT go get kvevict.dev/kvevict/bindings/go@vVERSION
set -euo pipefail
go=$1 version=v$2 out=$3
cd "$(dirname "${BASH_SOURCE[0]}")"
module=$(sed -n 's/^module //p' go.mod)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R --parents go.mod README.md *.go internal examples "$work"
cp ../../LICENSE "$work"
rm "$work/pack.go" "$work/internal/native/.clang-format"

versions=$out/$module/@v
mkdir -p "$versions"
cp go.mod "$versions/$version.mod"
printf '{"Version":"%s","Time":"1980-01-01T00:00:00Z"}\n' "$version" >"$versions/$version.info"
echo "$version" >"$versions/list"
"$go" run pack.go "$versions/$version.zip" "$module@$version" "$work"
echo "$versions/$version.zip"
