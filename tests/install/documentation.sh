#!/usr/bin/env bash
# documentation.sh PREFIX LIBDIR [NAME]: share/doc/NAME has the pages that the
# headers cite, and all that those link to.
set -euo pipefail
prefix=$1 doc=$1/share/doc/${3:-kvevict}
[[ -f $doc/README.md ]] || { echo "no $doc/README.md" && exit 1; }
cited=$(grep -ohE 'docs/[a-z/-]+\.md' "$prefix"/include/kvevict/*.h)
for page in $cited; do
  [[ -f $doc/$page ]] || { echo "a header cites $page, which is not in $doc" && exit 1; }
done
status=0 links=0
while IFS=: read -r page link; do
  link=${link#*\(} link=${link%)} link=${link%%#*}
  [[ $link != *://* ]] || continue
  links=$((links + 1))
  [[ -e ${page%/*}/$link ]] || { echo "$page links to $link" && status=1; }
done < <(grep -roE --include='*.md' '\]\([^) ]+\)' "$doc")
echo "$links links"
[[ $links -gt 20 && $status == 0 ]]
