#!/usr/bin/env bash
# documentation.sh OPTIONS AND SOURCES OF JAVADOC...: makes the documentation, which names
# nothing of C and no class that is not public.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
javadoc -quiet -notimestamp -encoding UTF-8 --release 17 -d "$work" "$@"
cd "$work/dev.kvevict/dev/kvevict"
pages=$(ls *.html | sed 's/\.html$//')
for type in Handle NativeSupport CEnum Struct Abi Names; do
  grep -qE "\\b$type\\b" <<<"$pages" && { echo "a page of $type" && exit 1; }
  ! grep -lE "dev\\.kvevict\\.$type\\b" ./*.html || { echo "which name $type" && exit 1; }
done
# Without tags, and without the constants of Java, which alone are capital letters.
sed 's/<[^>]*>/ /g; s/&[a-z]*;/ /g; s/\b[A-Z0-9]\{1,\}\(_[A-Z0-9]\{1,\}\)\{1,\}\b//g' ./*.html |
  "$here/../../table/c_names.sh" linux_x86_64
