#!/usr/bin/env bash
# make_jar.sh FILE.jar DIR [jar options...]
# Packs a directory and the licence; the same input gives the same bytes.
set -euo pipefail
jar=$1 dir=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
manifest=$jar.manifest
mkdir -p "$(dirname "$jar")" "$dir/META-INF"
printf 'Implementation-Title: kvevict\n' >"$manifest"
cp "$here/../../LICENSE" "$dir/META-INF/LICENSE"
cd "$dir"
find . -type f | sed 's|^\./||' | LC_ALL=C sort >"$jar.files"
# The earliest date that a zip file can hold without a time zone's doing.
jar --create --file "$jar.part" --manifest "$manifest" \
  --date 1980-01-01T00:00:02Z "$@" @"$jar.files"
mv "$jar.part" "$jar"
rm "$jar.files" "$manifest"
