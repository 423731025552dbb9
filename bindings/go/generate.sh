#!/usr/bin/env bash
# generate.sh [--check]: writes internal/native/native.go and native_wrap.c, or compares them
# with what SWIG writes today. SWIG runs elsewhere: a *.swig file or another file of its making
# would become part of the package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
package=bindings/go/internal/native
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
swig -go -cgo -Wall -Werror -Ibindings -Icapi/include -intgosize 64 -module native \
  -package native -outdir "$work" -o "$work/native_wrap.c" bindings/kvevict.i
gofmt -w "$work/native.go"
if [[ ${1:-} != --check ]]; then
  cp "$work"/native.go "$work"/native_wrap.c "$package"
  exit
fi
version=$(swig -version | sed -n 's/^SWIG Version //p')
if ! grep -q "^ \* Version $version\$" "$package/native.go"; then
  echo "skipped: the committed files are another SWIG's, this is $version"
  exit 77
fi
status=0
for file in native.go native_wrap.c; do
  diff -u "$package/$file" "$work/$file" || status=1
done
[[ $status == 0 ]] || echo "out of date: run bindings/go/generate.sh and commit"
exit "$status"
