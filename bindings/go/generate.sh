#!/usr/bin/env bash
# generate.sh [--check]: writes what is made from the headers and params.inc and
# committed, or compares it with what would be made today. It works elsewhere: a
# *.swig file or another file of SWIG's would become part of the package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
../generate.sh go "$work" -cgo -intgosize 64 -module native -package native
mv "$work/wrap.c" "$work/native_wrap.c"
# SWIG tells packages apart by a hash, which changes with every letter of its input.
sed -i 's/_native_[0-9a-f]\{16\}/_kvevict/g' "$work/native.go" "$work/native_wrap.c"
gofmt -w "$work"/*.go

# Writes or compares files of a folder.
status=0 check=${1:-}
made() { # folder file...
  local folder=$1 file
  shift
  for file; do
    if [[ $check != --check ]]; then
      cp "$work/$file" "$folder"
    else
      diff -u "$folder/$file" "$work/$file" || status=1
    fi
  done
}
made . enums.go options.go parameters.go replay_fields_test.go
made internal/native names.go structs.go
version=$(swig -version | sed -n 's/^SWIG Version //p')
if [[ $check != --check ]] || grep -q "^ \* Version $version\$" internal/native/native.go; then
  made internal/native native.go native_wrap.c
elif [[ $status == 0 ]]; then
  echo "skipped: what SWIG made is another version's, this is $version"
  exit 77
fi
[[ $status == 0 ]] || echo "out of date: run bindings/go/generate.sh and commit"
exit "$status"
