#!/usr/bin/env bash
# hardened.sh FILE...: checks the protections of a shipped library or program:
# position-independent code, no executable stack, all addresses bound and made
# read-only at start, stack protector, calls that check the sizes of buffers.
set -euo pipefail
export LC_ALL=C
status=0

for file in "$@"; do
  headers=$(readelf -W --file-header --program-headers --dynamic "$file")
  undefined=$(nm --dynamic --undefined-only --format=just-symbols "$file")
  wrong=()
  grep -q 'Type: *DYN ' <<<"$headers" || wrong+=("not position-independent")
  grep -q 'GNU_RELRO' <<<"$headers" || wrong+=("no RELRO")
  grep -qE '\(FLAGS(_1)?\).*\b(BIND_)?NOW\b' <<<"$headers" || wrong+=("no BIND_NOW")
  grep -q 'GNU_STACK .* RW ' <<<"$headers" || wrong+=("executable stack")
  ! grep -q '(TEXTREL)' <<<"$headers" || wrong+=("relocations in code")
  grep -q '^__stack_chk_fail\(@\|$\)' <<<"$undefined" || wrong+=("no stack protector")
  checked=$(grep -v '^__stack_chk_fail' <<<"$undefined" | grep -c '^__[a-z]*_chk\(@\|$\)' || true)
  [[ $checked -gt 0 ]] || wrong+=("no _FORTIFY_SOURCE")
  echo "${file##*/}: ${wrong[*]:-fine, $checked checked functions}"
  [[ ${#wrong[@]} == 0 ]] || status=1
done
exit $status
